// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// src/bpfio against the running kernel. Everything lives in descriptors, a private bpffs and a scratch cgroup.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/netns_thread.h"
#include "bpf/scratch.h"
#include "bpfio/btf.h"
#include "bpfio/enumerate.h"
#include "bpfio/iterator.h"
#include "bpfio/link.h"
#include "bpfio/map.h"
#include "bpfio/object.h"
#include "bpfio/pin.h"
#include "bpfio/probe.h"
#include "bpfio/program.h"
#include "harness/assert.h"
#include "net/cgroup.h"
#include "net/socket.h"

namespace sluice::bpfio {
namespace {

using test::must;
using test::PrivateMounts;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const auto* const kMounts = testing::AddGlobalTestEnvironment(new PrivateMounts);

const std::string kObjects = std::string(SLUICE_BUILD_DIR) + "/tests/bpf/bpfio_objects.o";
const std::string kRefused = std::string(SLUICE_BUILD_DIR) + "/tests/bpf/bpfio_refused.o";

// The types of bpfio_objects.bpf.c.
struct TestValue {
  std::uint64_t first;
  std::int32_t second;
  std::uint32_t third[2];
  std::uint16_t inner, pad;
};
static_assert(sizeof(TestValue) == 24);
struct Prefix {
  std::uint32_t length;
  std::uint8_t address[16];
};
struct Record {
  std::uint64_t cookie_or_zero;
  std::uint32_t state, local_port, netns_ino, check;
};

// Unique over concurrent runs on one machine: the registry is the kernel's.
std::string cca_name(int n) { return fmt::format("sl_t{}_{}", n, ::getpid()); }

Object loaded(const std::string& cca = cca_name(0)) {
  Object object = must(Object::open_file(kObjects));
  must(object.set_struct_ops_name("t_cca", cca));
  must(object.load());
  return object;
}

template <class Condition>
bool soon(Condition condition) {
  const RealClock clock;
  const std::uint64_t deadline = clock.monotonic_ns() + 10'000'000'000;
  while (!condition()) {
    if (clock.monotonic_ns() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// The kernel drops what a pin held after a grace period, not within unlink(2).
bool gone_soon(const std::string& cca) {
  return soon([&] {
    const std::vector<std::string> names = must(available_ccas());
    return std::find(names.begin(), names.end(), cca) == names.end();
  });
}

std::array<std::byte, 64> packet() { return {}; }

std::uint32_t run(const Program& program, std::uint32_t repeat = 1) {
  auto data = packet();
  TestRun what;
  what.data = data;
  what.repeat = repeat;
  return must(program.test_run(what)).value;
}

// --- objects ---

TEST(ObjectTest, BadFilesAreToldApart) {
  auto missing = Object::open_file("/no/such.o");
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_EQ(missing.error().where, "/no/such.o");
  std::string junk(1000, 'x');
  auto bad = Object::open_memory(std::as_bytes(std::span(junk)), "junk");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, Code::kInvalid);
  EXPECT_THAT(bad.error().message(), HasSubstr("junk"));
}

TEST(ObjectTest, NamesOfProgramsAndMaps) {
  Object object = must(Object::open_file(kObjects));
  EXPECT_EQ(object.name(), "bpfio_objects");
  EXPECT_THAT(object.program_names(), Contains("t_classify"));
  EXPECT_THAT(object.map_names(), testing::IsSupersetOf({"t_hash", "t_outer", "t_cca"}));
  EXPECT_THAT(object.map_names(), Not(Contains(HasSubstr(".rodata"))));
  EXPECT_THAT(object.struct_ops_names(), ElementsAre("t_cca", "t_cca_unlinked"));
  EXPECT_EQ(object.program("t_classify").error().code, Code::kNotFound);  // before load
  EXPECT_EQ(object.map("t_hash").error().code, Code::kNotFound);
}

TEST(ObjectTest, ConstantsAreSetBeforeLoadOnly) {
  Object object = must(Object::open_file(kObjects));
  must(object.set_rodata("answer", std::uint32_t{42}));
  EXPECT_EQ(object.set_rodata("answer", std::uint64_t{42}).error().code, Code::kInvalid);
  EXPECT_EQ(object.set_rodata("question", std::uint32_t{42}).error().code, Code::kNotFound);
  must(object.set_struct_ops_name("t_cca", cca_name(1)));
  must(object.load());
  EXPECT_EQ(run(must(object.program("t_classify"))), 42U);
  EXPECT_EQ(object.set_rodata("answer", std::uint32_t{43}).error().code, Code::kConflict);
  EXPECT_EQ(object.set_struct_ops_name("t_cca", "late").error().code, Code::kConflict);
}

TEST(ObjectTest, ARefusalNamesProgramReasonAndSavedLog) {
  Object object = must(Object::open_file(kRefused));
  const std::string logs = PrivateMounts::dir() + "/logs/deep";
  Status status = object.load({.log_dir = logs});
  ASSERT_FALSE(status);
  const Error& error = status.error();
  EXPECT_EQ(error.code, Code::kInvalid);
  EXPECT_EQ(error.where, "bpfio_refused");
  EXPECT_THAT(error.what, HasSubstr("t_bad"));
  EXPECT_THAT(error.what, HasSubstr("packet"));
  EXPECT_THAT(error.detail, HasSubstr("invalid access to packet"));
  const std::string path = logs + "/verifier-bpfio_refused-t_bad.log";
  EXPECT_THAT(error.remedy, HasSubstr(path));
  EXPECT_EQ(must(read_file(path)), error.detail);
}

TEST(ObjectTest, ARefusalSurvivesAFullOrMissingLogFolder) {
  Object object = must(Object::open_file(kRefused));
  Status status = object.load({.log_dir = "/proc/nowhere"});
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().what, HasSubstr("t_bad"));
  EXPECT_THAT(status.error().remedy, HasSubstr("could not be saved"));
}

TEST(ObjectTest, ProgramsLeftOutAreNotVerified) {
  Object object = must(Object::open_file(kRefused));
  EXPECT_EQ(object.set_autoload("t_none", false).error().code, Code::kNotFound);
  must(object.set_autoload("t_bad", false));
  must(object.load());
  EXPECT_EQ(run(must(object.program("t_good"))), 0U);
  EXPECT_EQ(object.program("t_bad").error().code, Code::kNotFound);
}

TEST(ObjectTest, WhatWasTakenOutlivesTheObject) {
  std::optional<Object> object = loaded();
  Program program = must(object->program("t_classify"));
  auto hash = must(Map<std::uint32_t, TestValue>::from(must(object->map("t_hash"))));
  object.reset();
  EXPECT_EQ(run(program), 1U);
  must(hash.update(1, {}));
  EXPECT_EQ(must(hash.entries()).size(), 1U);
}

TEST(ObjectTest, MapsAreSharedByReuseAndMisfitsRefused) {
  Object first = loaded();
  Object second = must(Object::open_file(kObjects));
  must(second.set_struct_ops_name("t_cca", cca_name(1)));
  MapFd mapped = must(first.map("t_mapped"));
  EXPECT_EQ(second.reuse_map("t_hash", mapped).error().code, Code::kConflict);
  MapFd small = must(MapFd::create({MapType::kHash, "small", 4, 8, 64, 0}));
  auto misfit = second.reuse_map("t_hash", small);
  EXPECT_EQ(misfit.error().code, Code::kConflict);
  EXPECT_THAT(misfit.error().what, HasSubstr("value size is 8, not 24"));
  must(second.reuse_map("t_mapped", mapped));
  must(second.load());
  EXPECT_EQ(must(second.map("t_mapped")).info().id, mapped.info().id);
  EXPECT_NE(must(second.map("t_hash")).info().id, must(first.map("t_hash")).info().id);
}

TEST(ObjectTest, ProgramInfoIsTheKernels) {
  Object object = loaded();
  ProgramInfo info = must(must(object.program("t_classify")).info());
  EXPECT_EQ(info.name, "t_classify");
  EXPECT_EQ(info.type_name, "sched_cls");
  EXPECT_THAT(info.tag, testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_GT(info.verified_insns, 10U);
  EXPECT_GT(info.xlated_bytes, 80U);
  EXPECT_GT(info.jited_bytes, 0U);
  EXPECT_THAT(info.map_ids,
              testing::IsSupersetOf({must(object.map("t_mapped")).info().id, must(object.map("t_counters")).info().id}));
  EXPECT_EQ(must(Program::from_id(info.id)).id(), info.id);
  EXPECT_EQ(Program::from_id(0x7fffffff).error().code, Code::kNotFound);
}

// --- maps ---

TEST(MapTest, LookUpUpdateEraseList) {
  Object object = loaded();
  auto map = must(Map<std::uint32_t, TestValue>::from(must(object.map("t_hash"))));
  EXPECT_EQ(map.lookup(1).error().code, Code::kNotFound);
  EXPECT_EQ(must(map.find(1)), std::nullopt);
  must(map.update(1, {10, -1, {2, 3}, 4, 0}));
  EXPECT_EQ(must(map.lookup(1)).third[1], 3U);
  EXPECT_EQ(map.update(1, {}, Update::kCreateOnly).error().code, Code::kConflict);
  EXPECT_EQ(map.update(2, {}, Update::kReplaceOnly).error().code, Code::kNotFound);
  for (std::uint32_t key = 2; key <= 64; key++) must(map.update(key, {key, 0, {}, 0, 0}));
  EXPECT_EQ(map.update(65, {}).error().code, Code::kExhausted);
  auto entries = must(map.entries());
  std::set<std::uint64_t> firsts;
  for (auto& [key, value] : entries) firsts.insert(value.first);
  EXPECT_EQ(entries.size(), 64U);
  EXPECT_EQ(firsts.size(), 63U);  // 2..64; key 1 has 10
  must(map.erase(1));
  EXPECT_EQ(map.erase(1).error().code, Code::kNotFound);
  EXPECT_GT(must(map.raw().memory_bytes()), 64U * sizeof(TestValue));
}

TEST(MapTest, OtherSizesAndOtherObjectsAreRefused) {
  Object object = loaded();
  EXPECT_EQ((Map<std::uint32_t, std::uint64_t>::from(must(object.map("t_hash")))).error().code, Code::kConflict);
  EXPECT_EQ((Map<std::uint32_t, std::uint64_t>::from(must(object.map("t_counters")))).error().code,
            Code::kConflict);  // per CPU
  EXPECT_EQ(MapFd::adopt(must(duplicate(must(object.program("t_classify")).fd()))).error().code, Code::kConflict);
  EXPECT_EQ(Program::adopt(must(duplicate(must(object.map("t_hash")).fd()))).error().code, Code::kConflict);
  EXPECT_EQ(MapFd::from_id(0x7fffffff).error().code, Code::kNotFound);
  EXPECT_EQ(MapFd::create({MapType::kHash, "none", 0, 8, 0, 0}).error().code, Code::kInvalid);
}

TEST(MapTest, BatchesFillHashesAndTries) {
  auto hash = must(Map<std::uint32_t, std::uint64_t>::from(must(MapFd::create({MapType::kHash, "batch", 4, 8, 5000, 0}))));
  std::vector<std::uint32_t> keys(5000);
  std::vector<std::uint64_t> values(5000);
  for (std::uint32_t i = 0; i < keys.size(); i++) values[i] = (keys[i] = i) * 3ULL;
  must(hash.update_batch(keys, values));
  EXPECT_EQ(must(hash.entries()).size(), 5000U);
  EXPECT_EQ(must(hash.lookup(4999)), 14997U);
  must(hash.update_batch(std::span<const std::uint32_t>(), std::span<const std::uint64_t>()));

  auto trie = must(Map<Prefix, std::uint64_t>::from(must(MapFd::create({MapType::kLpmTrie, "trie", 20, 8, 100, kNoPrealloc}))));
  std::vector<Prefix> prefixes(101);
  std::vector<std::uint64_t> ids(101);
  for (std::uint32_t i = 0; i < prefixes.size(); i++) {
    prefixes[i] = {128, {}};
    prefixes[i].address[15] = static_cast<std::uint8_t>(i);
    ids[i] = i;
  }
  must(trie.update_batch(std::span(prefixes).first(100), std::span(ids).first(100)));
  EXPECT_EQ(must(trie.lookup(prefixes[99])), 99U);

  auto full = trie.update_batch(prefixes, ids);
  EXPECT_EQ(full.error().code, Code::kExhausted);
  EXPECT_THAT(full.error().message(), HasSubstr("element 100 of 101"));
}

TEST(MapTest, WithoutBatchesElementsGoOneByOne) {
  Object object = loaded();
  auto storage = must(Map<int, TestValue>::from(must(object.map("t_storage"))));  // the kernel has no batch for it
  UniqueFd a(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), b(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::vector<int> keys = {a.get(), b.get()};
  const std::vector<TestValue> values = {{1, 0, {}, 0, 0}, {2, 0, {}, 0, 0}};
  must(storage.update_batch(keys, values));
  EXPECT_EQ(must(storage.lookup(b.get())).first, 2U);
  const std::vector<int> bad = {a.get(), -1};
  auto failed = storage.update_batch(bad, values);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("element 1 of 2"));
}

TEST(MapTest, MappedMemoryIsWhatProgramsSee) {
  Object object = loaded();
  MapFd array = must(object.map("t_mapped"));
  MapMemory memory = must(MapMemory::map(array, true));
  ASSERT_EQ(memory.bytes().size(), 24U);
  memory.store_u64(0, 40);
  run(must(object.program("t_classify")));
  EXPECT_EQ(memory.load_u64(8), 42U);  // + `wide`, 2 in the source
  MapMemory reader = must(MapMemory::map(array, false));
  MapMemory moved = std::move(reader);
  EXPECT_EQ(moved.load_u64(8), 42U);
  EXPECT_EQ(must((must(Map<std::uint32_t, std::uint64_t>::from(std::move(array)))).lookup(1)), 42U);
  EXPECT_EQ(MapMemory::map(must(object.map("t_hash")), false).error().code, Code::kInvalid);
  EXPECT_DEATH(moved.store_u64(0, 1), "writable_");
}

TEST(MapTest, CountersAreSummedOverCpus) {
  Object object = loaded();
  MapFd counters = must(object.map("t_counters"));
  run(must(object.program("t_classify")), 1000);
  EXPECT_THAT(must(sum_per_cpu(counters)), ElementsAre(0, 1000, 0, 0));
  std::vector<std::byte> each(counters.transfer_bytes());
  EXPECT_EQ(each.size(), 8U * must(possible_cpus()));
  std::fill(each.begin(), each.end(), std::byte{0});
  for (unsigned cpu = 0; cpu < must(possible_cpus()); cpu++) each[cpu * 8] = std::byte{5};
  must(counters.update(bytes_of(std::uint32_t{3}), each));
  EXPECT_EQ(must(sum_per_cpu(counters))[3], 5U * must(possible_cpus()));
  EXPECT_EQ(sum_per_cpu(must(object.map("t_hash"))).error().code, Code::kInvalid);
}

TEST(MapTest, InnerMapsComeFromThePrototype) {
  Object object = must(Object::open_file(kObjects));
  MapSpec spec = must(object.inner_spec("t_outer"));
  EXPECT_EQ(spec.type, MapType::kLpmTrie);
  EXPECT_EQ(spec.key_size, 20U);
  EXPECT_EQ(object.inner_spec("t_hash").error().code, Code::kInvalid);
  must(object.set_struct_ops_name("t_cca", cca_name(1)));
  must(object.load());
  MapFd outer = must(object.map("t_outer"));
  Program resolve = must(object.program("t_resolve"));
  EXPECT_EQ(run(resolve), 1000U);
  EXPECT_EQ(outer.inner(0).error().code, Code::kNotFound);

  MapFd inner = must(MapFd::create(spec));
  must(outer.set_inner(0, inner));
  EXPECT_EQ(run(resolve), 1001U);
  auto trie = must(Map<Prefix, std::uint64_t>::from(must(outer.inner(0))));
  EXPECT_EQ(trie.info().id, inner.info().id);
  must(trie.update({0, {}}, 7));
  EXPECT_EQ(run(resolve), 7U);

  MapFd larger = must(MapFd::create_like(inner, "larger", 1000));
  EXPECT_EQ(larger.info().max_entries, 1000U);
  must(outer.set_inner(0, larger));
  EXPECT_EQ(run(resolve), 1001U);
  MapFd misfit = must(MapFd::create({MapType::kLpmTrie, "misfit", 20, 4, 16, kNoPrealloc}));
  auto refused = outer.set_inner(0, misfit);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_THAT(refused.error().message(), HasSubstr("misfit"));
  EXPECT_EQ(run(resolve), 1001U);
}

// --- type information ---

TEST(Btf, ValueTypeOfFileAndKernelAgree) {
  Object object = must(Object::open_file(kObjects));
  ValueType in_file = must(object.value_type("t_hash"));
  EXPECT_EQ(in_file.name, "test_value");
  EXPECT_EQ(in_file.size_bytes, sizeof(TestValue));
  ASSERT_NE(in_file.find("second"), nullptr);
  EXPECT_EQ(in_file.find("second")->offset_bytes, 8U);
  EXPECT_EQ(in_file.find("second")->size_bytes, 4U);
  EXPECT_TRUE(in_file.find("second")->is_signed);
  EXPECT_FALSE(in_file.find("first")->is_signed);
  EXPECT_EQ(in_file.find("third")->size_bytes, 8U);
  EXPECT_EQ(in_file.find("missing"), nullptr);
  EXPECT_NE(in_file.hash, must(object.value_type("t_mapped")).hash);

  Object running = loaded();
  ValueType in_kernel = must(value_type(must(running.map("t_hash"))));
  EXPECT_EQ(in_kernel.hash, in_file.hash);
  EXPECT_EQ(in_kernel.members.size(), in_file.members.size());
  EXPECT_EQ(must(value_type(must(running.map("t_storage")))).hash, in_file.hash);  // same type, another map
  EXPECT_EQ(value_type(must(MapFd::create({MapType::kHash, "plain", 4, 8, 1, 0}))).error().code, Code::kUnsupported);
}

// --- links ---

TEST(LinkTest, CgroupLinkRunsIsListedIsReplacedAndGoes) {
  test::ScratchCgroup cgroup("bpfio");
  Object object = loaded();
  Program first = must(object.program("t_sockops"));
  Program second = must(object.program("t_sockops_next"));
  {
    Link link = must(Link::attach_cgroup(first, cgroup.fd(), CgroupHook::kSockOps));
    LinkInfo info = must(link.info());
    EXPECT_EQ(info.type, LinkType::kCgroup);
    EXPECT_EQ(info.type_name, "cgroup");
    EXPECT_EQ(info.prog_id, first.id());
    EXPECT_EQ(info.cgroup_id, must(net::cgroup_id(cgroup.path())));
    EXPECT_EQ(info.target, to_string(CgroupHook::kSockOps));
    EXPECT_EQ(info.attach_type, attach_type(CgroupHook::kSockOps));
    EXPECT_EQ(must(net::cgroup_path(must(net::find_cgroup2()), info.cgroup_id)), cgroup.path());

    auto there = must(cgroup_programs(cgroup.fd(), CgroupHook::kSockOps, false));
    ASSERT_EQ(there.size(), 1U);
    EXPECT_EQ(there[0].prog_id, first.id());
    EXPECT_EQ(there[0].name, "t_sockops");
    EXPECT_THAT(must(cgroup_programs(cgroup.fd(), CgroupHook::kSetSockOpt, false)), IsEmpty());

    EXPECT_EQ(link.update(second, &second).error().code, Code::kConflict);
    EXPECT_EQ(must(link.info()).prog_id, first.id());
    must(link.update(second, &first));
    EXPECT_EQ(must(link.info()).prog_id, second.id());
    must(link.update(first));

    Link again = must(Link::from_id(link.id()));
    EXPECT_EQ(must(again.info()).prog_id, first.id());
    auto effective = must(cgroup_programs(cgroup.fd(), CgroupHook::kSockOps, true));
    EXPECT_EQ(
        std::count_if(effective.begin(), effective.end(), [&](const CgroupProgram& p) { return p.prog_id == first.id(); }), 1);
  }
  EXPECT_THAT(must(cgroup_programs(cgroup.fd(), CgroupHook::kSockOps, false)), IsEmpty());

  Link link = must(Link::attach_cgroup(first, cgroup.fd(), CgroupHook::kSockOps));
  must(link.detach());
  EXPECT_THAT(must(cgroup_programs(cgroup.fd(), CgroupHook::kSockOps, false)), IsEmpty());
  EXPECT_EQ(must(link.info()).cgroup_id, 0U);

  UniqueFd not_a_cgroup(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  auto refused = Link::attach_cgroup(first, not_a_cgroup.get(), CgroupHook::kSockOps);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().remedy, HasSubstr("cgroup2"));
}

// --- iterators ---

struct Listener {
  UniqueFd fd;
  std::uint32_t port = 0;
};
Listener listen_in(int netns_fd) {
  auto fd = run_in_netns(netns_fd, []() -> Result<UniqueFd> {
    UniqueFd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!made || ::listen(made.get(), 1) != 0) return fail_errno(errno, "cannot listen");
    return made;
  });
  Listener listener{must(std::move(fd)), 0};
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  EXPECT_EQ(::getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  listener.port = ntohs(address.sin_port);
  return listener;
}

TEST(Iterators, TcpWalkSeesOneNamespaceWhole) {
  Object object = loaded();
  Link link = must(Link::attach_iter(must(object.program("t_walk"))));
  EXPECT_EQ(must(link.info()).target, "tcp");
  UniqueFd blue = test::scratch_netns(), red = test::scratch_netns(), empty = test::scratch_netns();
  std::vector<Listener> blues;
  std::set<std::uint32_t> expected;
  for (int i = 0; i < 100; i++) {
    blues.push_back(listen_in(blue.get()));
    expected.insert(blues.back().port);
  }
  Listener other = listen_in(red.get());

  for (std::size_t batch : {kIterBufferBytes, sizeof(Record), sizeof(Record) * 3 + 5, std::size_t{1}}) {
    Iterator walk = must(Iterator::create(link, blue.get()));
    std::multiset<std::uint32_t> seen;
    must(for_each_record<Record>(
        walk,
        [&](const Record& record) {
          EXPECT_EQ(record.check, 0x5151U);
          seen.insert(record.local_port);
          return true;
        },
        batch));
    EXPECT_THAT(seen, testing::ElementsAreArray(expected)) << batch;
  }

  Iterator nothing = must(Iterator::create(link, empty.get()));
  must(for_each_record<Record>(nothing, [](const Record&) {
    ADD_FAILURE() << "a socket in an empty namespace";
    return true;
  }));

  Iterator stopped = must(Iterator::create(link, blue.get()));
  int visits = 0;
  must(for_each_record<Record>(stopped, [&](const Record&) { return ++visits < 3; }));
  EXPECT_EQ(visits, 3);

  Iterator odd = must(Iterator::create(link, red.get()));
  EXPECT_EQ(run_iter(odd, sizeof(Record) - 1, [](auto) { return true; }).error().code, Code::kCorrupt);
}

// Whether iterators over map elements can be loaded, judged without the probe. Some kernels forbid them (EPERM with every
// right).
Result<Object> with_storage_walk() {
  Object object = must(Object::open_file(kObjects));
  must(object.set_struct_ops_name("t_cca", cca_name(7)));
  must(object.set_autoload("t_walk_storage", true));
  SLUICE_CHECK(object.load());
  return object;
}

TEST(Iterators, StorageWalkNeedsItsMap) {
  auto opened = with_storage_walk();
  if (!opened) {
    ASSERT_EQ(opened.error().code, Code::kPermission) << opened.error().message();
    EXPECT_THAT(opened.error().message(), HasSubstr("t_walk_storage"));
    GTEST_SKIP() << "this kernel forbids iterators over map elements: " << opened.error().message();
  }
  Object object = std::move(*opened);
  Program walk_storage = must(object.program("t_walk_storage"));
  EXPECT_FALSE(Link::attach_iter(walk_storage));
  MapFd storage = must(object.map("t_storage"));
  auto typed = must(Map<int, TestValue>::from(must(storage.duplicate())));
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  must(typed.update(socket.get(), {0xabcdef, 0, {}, 0, 0}));
  Link link = must(Link::attach_iter(walk_storage, &storage));
  LinkInfo info = must(link.info());
  EXPECT_EQ(info.target, "bpf_sk_storage_map");
  EXPECT_EQ(info.map_id, storage.info().id);
  Iterator walk = must(Iterator::create(link));
  std::vector<std::uint64_t> firsts;
  must(for_each_record<std::uint64_t>(walk, [&](std::uint64_t first) {
    firsts.push_back(first);
    return true;
  }));
  EXPECT_THAT(firsts, ElementsAre(0xabcdef));
}

// --- struct_ops ---

std::optional<StructOpsCca> find_cca(const std::string& name) {
  for (StructOpsCca& cca : must(struct_ops_ccas()))
    if (cca.cca_name == name) return cca;
  return std::nullopt;
}

TEST(StructOps, RegistersUnderTheGivenNameUntilTheLinkGoes) {
  const std::string name = cca_name(2);
  Object object = must(Object::open_file(kObjects));
  EXPECT_EQ(must(object.struct_ops_name("t_cca")), "sl_t_default");
  must(object.set_struct_ops_name("t_cca", name));
  EXPECT_EQ(must(object.struct_ops_name("t_cca")), name);
  must(object.load());
  const std::uint32_t map_id = must(object.map("t_cca")).info().id;
  EXPECT_THAT(must(available_ccas()), Not(Contains(name)));

  std::optional<Link> link = must(object.attach_struct_ops("t_cca"));
  EXPECT_THAT(must(available_ccas()), Contains(name));
  LinkInfo info = must(link->info());
  EXPECT_EQ(info.type, LinkType::kStructOps);
  EXPECT_EQ(info.map_id, map_id);

  auto idle = find_cca(name);
  ASSERT_TRUE(idle);
  EXPECT_EQ(idle->map_id, map_id);
  EXPECT_EQ(idle->map_name, "t_cca");
  EXPECT_EQ(idle->link_id, link->id());
  EXPECT_TRUE(idle->registered);

  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  must(net::set_congestion_control(socket.get(), name));
  EXPECT_EQ(must(net::congestion_control(socket.get())), name);
  EXPECT_EQ(find_cca(name)->references, idle->references + 1);

  object = loaded(cca_name(3));  // the first object is gone: the link alone holds it
  EXPECT_THAT(must(available_ccas()), Contains(name));
  link.reset();
  EXPECT_THAT(must(available_ccas()), Not(Contains(name)));
  auto retired = find_cca(name);  // a socket still runs it
  ASSERT_TRUE(retired);
  EXPECT_FALSE(retired->registered);
  EXPECT_EQ(retired->link_id, 0U);
  must(net::set_congestion_control(socket.get(), "reno"));
}

TEST(StructOps, TwoVersionsLiveSideBySideAndATakenNameIsAConflict) {
  Object one = loaded(cca_name(4)), two = loaded(cca_name(5)), clash = loaded(cca_name(4));
  Link first = must(one.attach_struct_ops("t_cca"));
  Link second = must(two.attach_struct_ops("t_cca"));
  EXPECT_NE(must(first.info()).map_id, must(second.info()).map_id);
  auto taken = clash.attach_struct_ops("t_cca");
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kConflict);
  EXPECT_THAT(taken.error().message(), HasSubstr(cca_name(4)));
  EXPECT_TRUE(find_cca(cca_name(4))->registered);
}

TEST(StructOps, BadNamesAndMapsWithoutALinkAreRefused) {
  Object object = must(Object::open_file(kObjects));
  for (const char* bad : {"", "has-hyphen", "sixteen_letters_", "sp ace", "ünicode"})
    EXPECT_EQ(object.set_struct_ops_name("t_cca", bad).error().code, Code::kInvalid) << bad;
  must(object.set_struct_ops_name("t_cca", "fifteen_letters"));
  EXPECT_EQ(object.set_struct_ops_name("t_hash", "x").error().code, Code::kInvalid);
  EXPECT_EQ(object.set_struct_ops_name("t_none", "x").error().code, Code::kNotFound);
  EXPECT_EQ(object.attach_struct_ops("t_cca_unlinked").error().code, Code::kInvalid);
  EXPECT_EQ(object.attach_struct_ops("t_hash").error().code, Code::kInvalid);
}

// --- pins ---

std::string pin_root(const std::string& name) { return PrivateMounts::bpffs() + "/" + name; }

TEST(Pins, KeepObjectsAliveUnderTheirNames) {
  PinRoot root = must(PinRoot::open(pin_root("alive/v1")));
  std::uint32_t map_id = 0, program_id = 0, link_id = 0;
  const std::string name = cca_name(6);
  {
    Object object = loaded(name);
    MapFd hash = must(object.map("t_hash"));
    must((must(Map<std::uint32_t, TestValue>::from(must(hash.duplicate())))).update(1, {77, 0, {}, 0, 0}));
    Program program = must(object.program("t_classify"));
    Link link = must(object.attach_struct_ops("t_cca"));
    must(root.pin(hash, "maps/t_hash"));
    must(root.pin(program, "classify"));
    must(root.pin(link, "links/cubic-1_0"));
    EXPECT_EQ(root.pin(program, "classify").error().code, Code::kConflict);
    map_id = hash.info().id;
    program_id = program.id();
    link_id = link.id();
  }
  EXPECT_THAT(must(root.list()), ElementsAre("classify", "links/cubic-1_0", "maps/t_hash"));
  EXPECT_THAT(must(available_ccas()), Contains(name));

  PinRoot later = must(PinRoot::open(pin_root("alive/v1")));
  MapFd hash = must(later.map("maps/t_hash"));
  EXPECT_EQ(hash.info().id, map_id);
  EXPECT_EQ(must((must(Map<std::uint32_t, TestValue>::from(std::move(hash)))).lookup(1)).first, 77U);
  EXPECT_EQ(must(later.program("classify")).id(), program_id);
  EXPECT_EQ(must(later.link("links/cubic-1_0")).id(), link_id);

  EXPECT_EQ(later.map("classify").error().code, Code::kConflict);  // another kind
  EXPECT_EQ(later.link("maps/t_hash").error().code, Code::kConflict);
  EXPECT_EQ(later.map("maps").error().code, Code::kConflict);  // a folder
  EXPECT_EQ(later.map("maps/none").error().code, Code::kNotFound);
  EXPECT_TRUE(must(later.exists("classify")));
  EXPECT_FALSE(must(later.exists("nothing/there")));

  EXPECT_EQ(later.unpin("links").error().code, Code::kConflict);  // not empty
  must(later.unpin("links/cubic-1_0"));
  EXPECT_TRUE(gone_soon(name));
  must(later.unpin("links"));
  EXPECT_EQ(later.unpin("links").error().code, Code::kNotFound);

  must(later.rename("classify", "old/classify"));
  EXPECT_THAT(must(later.list()), ElementsAre("maps/t_hash", "old/classify"));
  Object second = loaded();
  must(later.pin(must(second.program("t_resolve")), "fresh"));
  must(later.rename("fresh", "old/classify"));  // replaces
  EXPECT_EQ(must(later.program("old/classify")).id(), must(second.program("t_resolve")).id());
}

TEST(Pins, NothingOutsideOfTheRootIsTouched) {
  PinRoot outer = must(PinRoot::open(pin_root("fence")));
  MapFd map = must(MapFd::create({MapType::kArray, "fenced", 4, 8, 1, 0}));
  must(outer.pin(map, "theirs"));
  PinRoot root = must(PinRoot::open(pin_root("fence/ours")));
  for (const char* bad : {"", "/", "/x", "x/", "..", "../theirs", "a/../../theirs", "a//b", ".", "a.b", "a b"}) {
    EXPECT_EQ(root.pin(map, bad).error().code, Code::kInvalid) << bad;
    EXPECT_EQ(root.unpin(bad).error().code, Code::kInvalid) << bad;
    EXPECT_EQ(root.map(bad).error().code, Code::kInvalid) << bad;
    EXPECT_EQ(root.rename(bad, "x").error().code, Code::kInvalid) << bad;
  }
  // Links that lead out are not followed, whoever made them.
  std::filesystem::create_directory_symlink(pin_root("fence"), pin_root("fence/ours/out"));
  std::filesystem::create_symlink(pin_root("fence/theirs"), pin_root("fence/ours/alias"));
  EXPECT_FALSE(root.map("out/theirs"));
  EXPECT_FALSE(root.unpin("out/theirs"));
  EXPECT_FALSE(root.map("alias"));
  must(root.pin(map, "deep/er/mine"));
  must(root.remove_all());
  EXPECT_FALSE(std::filesystem::exists(pin_root("fence/ours")));
  EXPECT_THAT(must(outer.list()), ElementsAre("theirs"));
}

TEST(Pins, TheRootMustBeAFolderOfABpffs) {
  auto elsewhere = PinRoot::open(PrivateMounts::dir() + "/not/bpffs");
  EXPECT_EQ(elsewhere.error().code, Code::kUnsupported);
  EXPECT_EQ(elsewhere.error().feature, "bpffs");
  EXPECT_THAT(elsewhere.error().remedy, HasSubstr("mount -t bpf"));
  EXPECT_FALSE(std::filesystem::exists(PrivateMounts::dir() + "/not"));
  EXPECT_EQ(PinRoot::open(PrivateMounts::bpffs()).error().code, Code::kInvalid);
}

// --- enumeration and probes ---

TEST(Enumerate, OwnObjectsAreAmongAll) {
  Object object = loaded();
  const MapInfo map = must(object.map("t_hash")).info();
  Program program = must(object.program("t_walk"));
  Link link = must(Link::attach_iter(program));
  auto maps = must(all_maps());
  EXPECT_EQ(std::count_if(maps.begin(), maps.end(), [&](const MapInfo& m) { return m.id == map.id && m.name == "t_hash"; }), 1);
  auto programs = must(all_programs());
  EXPECT_EQ(std::count_if(programs.begin(), programs.end(), [&](const ProgramInfo& p) { return p.id == program.id(); }), 1);
  auto links = must(all_links());
  auto mine = std::find_if(links.begin(), links.end(), [&](const LinkInfo& l) { return l.id == link.id(); });
  ASSERT_NE(mine, links.end());
  EXPECT_EQ(mine->prog_id, program.id());
  EXPECT_THAT(must(available_ccas()), Contains("reno"));
}

TEST(Probes, AgreeWithTheKernelsVersionAndLeaveNothing) {
  const KernelVersion kernel = must(running_kernel());
  for (const ProbeResult& result : probe_all()) {
    EXPECT_FALSE(result.reason.empty());
    if (result.feature->id == FeatureId::kIterSkStorage && !with_storage_walk()) {
      EXPECT_EQ(result.presence, Presence::kAbsent) << result.reason;
      EXPECT_EQ(result.contradicts_version, kernel >= result.feature->min_kernel);
      continue;
    }
    EXPECT_FALSE(result.contradicts_version) << result.feature->name << ": " << result.reason;
    if (result.feature->kind != FeatureKind::kKernel) continue;
    // Both ways: a probe that always says yes would be as useless.
    EXPECT_EQ(result.presence, kernel >= result.feature->min_kernel ? Presence::kPresent : Presence::kAbsent)
        << result.feature->name << ": " << result.reason;
  }
  for (FeatureId id : {FeatureId::kBpffs, FeatureId::kCapSysAdmin, FeatureId::kCgroup2, FeatureId::kJit})
    EXPECT_TRUE(require(id)) << feature(id).name;
  // Another process may be probing: what it made goes with it, a leak of ours would stay.
  std::set<std::uint32_t> maps, programs;
  for (const MapInfo& map : must(all_maps()))
    if (map.name == "sl_probe") maps.insert(map.id);
  for (const ProgramInfo& program : must(all_programs()))
    if (program.name == "sl_probe") programs.insert(program.id);
  EXPECT_TRUE(soon([&] {
    std::erase_if(maps, [](std::uint32_t id) { return !MapFd::from_id(id); });
    std::erase_if(programs, [](std::uint32_t id) { return !Program::from_id(id); });
    return maps.empty() && programs.empty();
  }));
}

}  // namespace
}  // namespace sluice::bpfio
