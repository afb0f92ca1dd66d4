// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "harness/test_cca.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "harness/bpf_object.h"

namespace sluice::test {
namespace {

constexpr char kNameInObject[16] = "sl_test_reno";
constexpr const char* kMap = "reno_like";

struct Copy {
  BpfObject object;
  bpf_map* map = nullptr;
  std::uint32_t id = 0;
};

Result<Copy> load_copy(const std::string& name) {
  SLUICE_TRY(object, BpfObject::open("reno_like.o"));
  SLUICE_TRY(map, object.map(kMap));
  std::size_t size = 0;
  auto* data = static_cast<char*>(bpf_map__initial_value(map, &size));
  if (data == nullptr) return fail(Code::kUnsupported, "libbpf does not show a struct_ops map's initial value");
  // The name is the only field that holds this text; finding it saves a walk of the kernel's BTF for its offset.
  char* at = std::search(data, data + size, std::begin(kNameInObject), std::end(kNameInObject));
  if (at == data + size) return fail(Code::kInternal, "the test CCA's object does not hold its name");
  std::memset(at, 0, sizeof(kNameInObject));
  name.copy(at, sizeof(kNameInObject) - 1);
  SLUICE_CHECK(object.load());
  bpf_map_info info{};
  __u32 info_size = sizeof(info);
  if (int err = ::bpf_map_get_info_by_fd(bpf_map__fd(map), &info, &info_size); err != 0)
    return fail_errno(-err, "cannot read the id of the test CCA");
  return Copy{std::move(object), map, info.id};
}

}  // namespace

struct TestCca::State {
  std::string name;
  std::vector<Copy> copies;  // old ones too: they stay loaded as long as their connections
  bpf_link* link = nullptr;
  ~State() { bpf_link__destroy(link); }
};

TestCca::TestCca(std::unique_ptr<State> state) : state_(std::move(state)) {}
TestCca::TestCca(TestCca&&) noexcept = default;
TestCca& TestCca::operator=(TestCca&&) noexcept = default;
TestCca::~TestCca() = default;

Result<TestCca> TestCca::register_as(const std::string& name) {
  auto state = std::make_unique<State>();
  state->name = name;
  SLUICE_TRY(copy, load_copy(name));
  state->link = bpf_map__attach_struct_ops(copy.map);
  if (state->link == nullptr) return fail_errno(errno, "cannot register the test CCA as {}", name);
  state->copies.push_back(std::move(copy));
  return TestCca(std::move(state));
}

std::uint32_t TestCca::struct_ops_id() const { return state_->copies.back().id; }

Status TestCca::replace() {
  SLUICE_TRY(copy, load_copy(state_->name));
  if (int err = bpf_link__update_map(state_->link, copy.map); err != 0)
    return fail_errno(-err, "cannot replace the test CCA {}", state_->name);
  state_->copies.push_back(std::move(copy));
  return {};
}

std::string unique_cca_name() {
  static unsigned calls = 0;
  return fmt::format("slt{}_{}", ::getpid(), calls++);
}

}  // namespace sluice::test
