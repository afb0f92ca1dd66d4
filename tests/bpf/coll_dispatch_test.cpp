// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundle `dispatch`: what it hands on, to whom, and what it leaves alone. Its verdict is that of the program behind a port: an
// aggregator that drops a KEY which it does not have.
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <net/if.h>

#include "bpf/coll_frames.h"
#include "bpfio/object.h"
#include "coll/kernel/interface.h"
#include "harness/assert.h"
#include "harness/topology.h"

namespace sluice::test {
namespace {

using coll::Header;
using coll::Interface;

constexpr std::uint32_t kVerifierBudget = 2'000;

class CollDispatch : public testing::Test {
 protected:
  CollDispatch() : topology_(must(Topology::create(pair()))), object_(must(bpfio::Object::open_file(path("aggregate")))) {
    must(topology_.host("a").call([&]() -> Status {
      interface_ = must(Interface::attach(::if_nametoindex("eth0"), path("dispatch")));
      return {};
    }));
    must(object_.load());
    const std::uint32_t zero = 0;
    sl_coll_job job{};
    job.job = 1;
    job.port = __builtin_bswap16(kPort);
    must(must(object_.map("sl_coll_job")).update(bpfio::bytes_of(zero), bpfio::bytes_of(job)));
  }

  static std::string path(const std::string& bundle) {
    return fmt::format("{}/bundles/{}/1.0.0/{}.bpf.o", SLUICE_BUILD_DIR, bundle, bundle);
  }
  std::uint32_t verdict(const Bytes& frame) const {
    return must(interface_->program().test_run(
                    {.data = std::as_bytes(std::span(frame)), .context = {}, .data_out_max = frame.size()}))
        .value;
  }
  static Bytes packet(std::uint32_t magic) {
    Header header;
    header.magic = magic;
    header.key = 5;
    header.job = 1;
    return coll::encode(header);
  }
  static Bytes frame(const Form& form, std::uint16_t port, const Bytes& packet) {
    Address from = ours(form.v6), to = ours(form.v6);
    from.port = 20000;
    to.port = port;
    return frame_of(form, from, to, packet);
  }
  std::uint64_t unclaimed() const { return must(interface_->counter(SL_COLL_DISPATCH_UNCLAIMED)); }

  Topology topology_;
  bpfio::Object object_;
  std::shared_ptr<Interface> interface_;
};

TEST_F(CollDispatch, APortsPacketsGoToItsProgramUntilTheClaimEnds) {
  const auto program = must(object_.program("sl_coll_aggregate"));
  std::uint64_t passed = 0;
  for (const Form& form : {Form{}, Form{.v6 = true}, Form{.vlan = true}, Form{.v6 = true, .vlan = true}}) {
    const Bytes ours = frame(form, kPort, packet(SL_COLL_MAGIC_AGGREGATE));
    EXPECT_EQ(verdict(ours), static_cast<std::uint32_t>(XDP_PASS));
    EXPECT_EQ(unclaimed(), ++passed);
    {
      const auto claim = must(interface_->claim(kPort, program));
      EXPECT_EQ(verdict(ours), static_cast<std::uint32_t>(XDP_DROP));
      EXPECT_EQ(verdict(frame(form, kPort + 1, packet(SL_COLL_MAGIC_AGGREGATE))), static_cast<std::uint32_t>(XDP_PASS));
      EXPECT_EQ(unclaimed(), ++passed);
    }
    EXPECT_EQ(verdict(ours), static_cast<std::uint32_t>(XDP_PASS));
    EXPECT_EQ(unclaimed(), ++passed);
  }
  EXPECT_EQ(must(interface_->counter(SL_COLL_DISPATCH_GONE)), 0u);
}

TEST_F(CollDispatch, EverythingElsePassesAndIsNotCounted) {
  const auto claim = must(interface_->claim(kPort, must(object_.program("sl_coll_aggregate"))));
  const Bytes ours = frame({}, kPort, packet(SL_COLL_MAGIC_AGGREGATE));
  ASSERT_EQ(verdict(ours), static_cast<std::uint32_t>(XDP_DROP));
  EXPECT_EQ(verdict(frame({}, kPort, packet(0x53000000))), static_cast<std::uint32_t>(XDP_PASS));
  for (std::size_t length = 14; length < Form{}.payload() + sizeof(sl_coll_header); length++)
    EXPECT_EQ(verdict(Bytes(ours.begin(), ours.begin() + static_cast<std::ptrdiff_t>(length))),
              static_cast<std::uint32_t>(XDP_PASS));
  Bytes tcp = ours, options = ours, fragment = ours;
  tcp[23] = 6;
  options[14] = 0x46;
  fragment[20] = 0x20;
  for (const Bytes& other : {tcp, options, fragment}) EXPECT_EQ(verdict(other), static_cast<std::uint32_t>(XDP_PASS));
  EXPECT_EQ(unclaimed(), 0u);
}

TEST_F(CollDispatch, KeepsItsVerifierBudget) {
  const std::uint32_t verified = must(interface_->program().info()).verified_insns;
  std::cout << "sl_coll_dispatch: " << verified << " instructions verified\n";
  EXPECT_LT(verified, kVerifierBudget);
}

}  // namespace
}  // namespace sluice::test
