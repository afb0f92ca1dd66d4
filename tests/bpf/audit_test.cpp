// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The ground of `sluice audit` on the running kernel: what programs that a compiler made can do, who holds them, and the order
// in which the kernel runs them at a cgroup, above and below it. Everything in scratch cgroups and a private bpffs.
#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <linux/bpf.h>

#include <algorithm>
#include <map>

#include "agent/audit.h"
#include "agent/hook_audit.h"
#include "base/file.h"
#include "base/kernel_version.h"
#include "bpf/scratch.h"
#include "bpfio/enumerate.h"
#include "bpfio/holders.h"
#include "bpfio/hook_programs.h"
#include "bpfio/link.h"
#include "bpfio/object.h"
#include "bpfio/pin.h"
#include "harness/assert.h"
#include "net/cgroup.h"

namespace sluice::agent {
namespace {

using bpfio::CgroupHook;
using test::must;
using test::PrivateMounts;
using test::ScratchCgroup;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Order = HookProgram::Order;

const auto* const kMounts = testing::AddGlobalTestEnvironment(new PrivateMounts);
const std::string kObject = std::string(SLUICE_BUILD_DIR) + "/tests/bpf/foreign_sockops.o";

bpfio::Object loaded() {
  bpfio::Object object = must(bpfio::Object::open_file(kObject));
  must(object.load());
  return object;
}

using ByCallback = std::map<std::string, bpfio::Acts>;
ByCallback acts_of(const bpfio::Object& object, const std::string& program) {
  const auto shape = must(bpfio::hook_shape(CgroupHook::kSockOps));
  ByCallback all;
  for (auto& at : must(bpfio::acts_of(must(object.program(program)), CgroupHook::kSockOps, shape)))
    all[std::string(at.name)] = std::move(at.acts);
  return all;
}
std::vector<std::string> callbacks(const ByCallback& acts) {
  std::vector<std::string> names;
  for (const auto& [name, act] : acts) names.push_back(name);
  return names;
}

TEST(HookShapes, EveryHookTellsHowItsProgramsAreRewritten) {
  const auto sockops = must(bpfio::hook_shape(CgroupHook::kSockOps));
  ASSERT_TRUE(sockops.op_offset && sockops.reply_offset);
  EXPECT_NE(*sockops.op_offset, *sockops.reply_offset);
  EXPECT_NE(sockops.setsockopt, 0) << "root sees which helper a call is of";
  const auto setsockopt = must(bpfio::hook_shape(CgroupHook::kSetSockOpt));
  EXPECT_FALSE(setsockopt.op_offset || setsockopt.reply_offset);
  EXPECT_NE(setsockopt.setsockopt, 0);
}

TEST(ForeignPrograms, CompiledProgramsAreReadRight) {
  const auto object = loaded();
  const auto reno = acts_of(object, "f_sets_reno");
  EXPECT_THAT(callbacks(reno), ElementsAre("active_established", "passive_established"));
  for (const auto& [name, acts] : reno) {
    EXPECT_TRUE(acts.sets_cca);
    EXPECT_THAT(acts.cca_names, ElementsAre("reno"));
    EXPECT_FALSE(acts.other_cca || acts.returns_zero);
  }

  const auto configured = acts_of(object, "f_sets_config");
  EXPECT_THAT(callbacks(configured), ElementsAre("connect"));
  EXPECT_THAT(configured.at("connect").cca_names, ElementsAre("cubic")) << "the name lies in .data";

  const auto in_function = acts_of(object, "f_in_function");
  EXPECT_THAT(callbacks(in_function), ElementsAre("state"));
  EXPECT_THAT(in_function.at("state").cca_names, ElementsAre("bbr"));

  EXPECT_THAT(acts_of(object, "f_clears_ecn").at("needs_ecn").replies, ElementsAre(0));
  EXPECT_THAT(acts_of(object, "f_asks_for_ecn").at("needs_ecn").replies, ElementsAre(1));
  EXPECT_TRUE(acts_of(object, "f_returns_0").at("needs_ecn").returns_zero);

  const auto windows = acts_of(object, "f_sets_windows");
  EXPECT_THAT(callbacks(windows), ElementsAre("active_established", "rwnd_init"));
  EXPECT_TRUE(windows.at("active_established").sets_initial_window);
  EXPECT_FALSE(windows.at("active_established").sets_cca);
  EXPECT_THAT(windows.at("rwnd_init").replies, ElementsAre(40));

  EXPECT_THAT(acts_of(object, "f_harmless"), IsEmpty());
}

TEST(ForeignPrograms, TailCallsAreFollowedWhereTheyCanHappen) {
  const auto acts = acts_of(loaded(), "f_calls_on");
  EXPECT_THAT(callbacks(acts), ElementsAre("passive_established"));
  EXPECT_THAT(acts.at("passive_established").cca_names, ElementsAre("reno"));
}

TEST(ForeignPrograms, OurOwnPipelineIsReadAsWhatItDoes) {
  bpfio::Object policy = must(bpfio::Object::open_file(std::string(SLUICE_BUILD_DIR) + "/bundles/policy/1.0.0/policy.bpf.o"));
  must(policy.load());
  const auto acts = acts_of(policy, "sl_sockops");
  for (const char* callback : {"connect", "active_established", "passive_established", "listen"}) {
    ASSERT_TRUE(acts.contains(callback));
    EXPECT_TRUE(acts.at(callback).sets_cca) << callback;
    EXPECT_EQ(acts.at(callback).unread, "") << callback;
  }
  EXPECT_THAT(acts.at("needs_ecn").replies, ElementsAre(1));
  for (const auto& [name, act] : acts) EXPECT_FALSE(act.returns_zero) << name;
  EXPECT_EQ(acts.size(), 5u);
}

// ---- who and where ----

TEST(Holders, ProcessesAndPinsAreNamed) {
  const auto object = loaded();
  const auto program = must(object.program("f_harmless"));
  ScratchCgroup cgroup("holders");
  const auto link = must(bpfio::Link::attach_cgroup(program, cgroup.fd(), CgroupHook::kSockOps));
  const auto pins = must(bpfio::PinRoot::open(PrivateMounts::bpffs() + "/holders"));
  must(pins.pin(link, "deep/link"));
  const auto holders = must(bpfio::find_holders());
  const std::string self = fmt::format("process {} (audit_test)", ::getpid());
  EXPECT_THAT(holders.programs.at(program.id()), Contains(self));
  EXPECT_THAT(holders.links.at(link.id()), testing::UnorderedElementsAre(self, "pin " + pins.path() + "/deep/link"));
  must(link.detach());
  must(pins.remove_all());
}

// Cgroups parent > ours > child, and an object with programs for them.
class HookOrder : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& path : {ours_, child_}) {
      ASSERT_TRUE(std::filesystem::create_directory(path));
    }
  }
  void TearDown() override {
    links_.clear();
    for (const auto& [path, id] : legacy_) {
      const auto folder = must(open_file(path, O_RDONLY | O_DIRECTORY));
      const auto program = must(bpfio::Program::from_id(id));
      EXPECT_EQ(::bpf_prog_detach2(program.fd(), folder.get(), BPF_CGROUP_SOCK_OPS), 0);
    }
    for (const std::string& path : {child_, ours_}) EXPECT_EQ(::rmdir(path.c_str()), 0) << path;
  }

  std::uint32_t attach(const std::string& path, const std::string& program) {
    const auto folder = must(open_file(path, O_RDONLY | O_DIRECTORY));
    links_.push_back(must(bpfio::Link::attach_cgroup(must(object_.program(program)), folder.get(), CgroupHook::kSockOps)));
    return links_.back().id();
  }
  // Without a link; 0 or -errno.
  int attach_legacy(const std::string& path, const std::string& name, unsigned flags) {
    const auto folder = must(open_file(path, O_RDONLY | O_DIRECTORY));
    const auto program = must(object_.program(name));
    const int err = ::bpf_prog_attach(program.fd(), folder.get(), BPF_CGROUP_SOCK_OPS, flags);
    if (err == 0) legacy_.emplace_back(path, program.id());
    return err;
  }
  HookAudit audit(std::uint32_t own_link, const std::string& own_program = "f_harmless") {
    const AuditedCgroup where{must(net::find_cgroup2()), ours_, own_link,
                              own_link == 0 ? 0 : must(object_.program(own_program)).id()};
    return must(audit_hook(kAuditedHooks[0], where, must(bpfio::find_holders())));
  }
  static std::vector<std::pair<std::string, Order>> orders(const HookAudit& audit) {
    std::vector<std::pair<std::string, Order>> list;
    for (const auto& program : audit.list) list.emplace_back(program.name, program.order);
    return list;
  }
  static const HookProgram& named(const HookAudit& audit, const std::string& name) {
    const auto found = std::ranges::find(audit.list, name, &HookProgram::name);
    if (found == audit.list.end()) throw std::runtime_error("no program " + name);
    return *found;
  }

  bpfio::Object object_ = loaded();
  ScratchCgroup parent_{"order"};
  std::string ours_ = parent_.path() + "/ours", child_ = ours_ + "/child";
  std::vector<bpfio::Link> links_;
  std::vector<std::pair<std::string, std::uint32_t>> legacy_;
};

TEST_F(HookOrder, programs_are_listed_as_the_kernel_runs_them) {
  attach(parent_.path(), "f_clears_ecn");
  attach(ours_, "f_sets_windows");
  const auto own = attach(ours_, "f_harmless");
  attach(ours_, "f_sets_reno");
  attach(child_, "f_returns_0");
  const auto found = audit(own);
  EXPECT_TRUE(found.attached);
  EXPECT_EQ(found.programs, 3u);
  EXPECT_EQ(found.limit, 64u);
  EXPECT_THAT(orders(found), ElementsAre(std::pair("f_returns_0", Order::kBefore), std::pair("f_sets_windows", Order::kBefore),
                                         std::pair("f_harmless", Order::kOurs), std::pair("f_sets_reno", Order::kAfter),
                                         std::pair("f_clears_ecn", Order::kAfter)));
  const auto& reno = named(found, "f_sets_reno");
  EXPECT_EQ(reno.cgroup, ours_);
  EXPECT_EQ(reno.link_id, links_[3].id());
  EXPECT_EQ(bpfio::attach_mode(reno.attach_flags), "multi");
  EXPECT_EQ(reno.tag.size(), 16u);
  EXPECT_EQ(reno.uid, 0u);
  EXPECT_THAT(reno.holders, Contains(HasSubstr("audit_test")));
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  EXPECT_NEAR(static_cast<double>(reno.loaded_at_ns) / 1e9, static_cast<double>(now.tv_sec), 60.0);
  EXPECT_EQ(named(found, "f_clears_ecn").cgroup, parent_.path());
}

TEST_F(HookOrder, a_program_without_a_link_is_found_and_told_apart) {
  const auto own = attach(ours_, "f_harmless");
  ASSERT_EQ(attach_legacy(ours_, "f_sets_reno", BPF_F_ALLOW_MULTI), 0);
  const auto found = audit(own);
  EXPECT_EQ(named(found, "f_sets_reno").link_id, 0u);
  EXPECT_EQ(named(found, "f_sets_reno").order, Order::kAfter);
}

TEST_F(HookOrder, a_program_above_that_lets_itself_be_overruled_does_not_run) {
  ASSERT_EQ(attach_legacy(parent_.path(), "f_sets_reno", BPF_F_ALLOW_OVERRIDE), 0);
  EXPECT_EQ(named(audit(0), "f_sets_reno").order, Order::kBeside) << "nothing of ours is there";
  const auto own = attach(ours_, "f_harmless");
  const auto found = audit(own);
  EXPECT_EQ(named(found, "f_sets_reno").order, Order::kNever);
  EXPECT_THAT(judge(named(found, "f_sets_reno"), kAuditedHooks[0]).overrides, IsEmpty());
}

TEST_F(HookOrder, preorder_and_before_are_seen_where_the_kernel_has_them) {
  const auto kernel = must(running_kernel());
  constexpr unsigned kBefore = 1 << 3, kPreorder = 1 << 6;  // 6.17, 6.15
  const auto own = attach(ours_, "f_harmless");
  const int preorder = attach_legacy(parent_.path(), "f_clears_ecn", BPF_F_ALLOW_MULTI | kPreorder);
  EXPECT_TRUE(preorder == 0 || (kernel < KernelVersion{6, 15, 0})) << "stable kernels have it earlier";
  const int before = attach_legacy(ours_, "f_sets_reno", BPF_F_ALLOW_MULTI | kBefore);
  EXPECT_TRUE(before == 0 || (kernel < KernelVersion{6, 17, 0}));
  const auto found = audit(own);
  if (preorder == 0) {
    EXPECT_EQ(named(found, "f_clears_ecn").order, Order::kBefore);
  }
  if (before == 0) {
    EXPECT_EQ(named(found, "f_sets_reno").order, Order::kBefore);
  }
}

TEST_F(HookOrder, a_full_hook_is_counted_and_refuses_with_a_remedy) {
  for (int i = 0; i < 64; ++i) attach(ours_, "f_harmless");
  const auto found = audit(0);
  EXPECT_EQ(found.programs, found.limit);
  const auto folder = must(open_file(ours_, O_RDONLY | O_DIRECTORY));
  const auto refused = bpfio::Link::attach_cgroup(must(object_.program("f_sets_reno")), folder.get(), CgroupHook::kSockOps);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_THAT(refused.error().remedy, HasSubstr("takes 64 programs"));
}

// ---- what it means for ours ----

TEST_F(HookOrder, only_what_has_the_last_word_overrules_ours) {
  attach(ours_, "f_sets_reno");
  attach(ours_, "f_in_function");
  attach(ours_, "f_returns_0");
  attach(ours_, "f_asks_for_ecn");
  const auto own = attach(ours_, "f_harmless");
  attach(ours_, "f_sets_config");
  attach(ours_, "f_clears_ecn");
  attach(ours_, "f_sets_windows");
  const auto found = audit(own);
  const auto of = [&](const std::string& name) { return judge(named(found, name), kAuditedHooks[0]); };
  EXPECT_THAT(of("f_sets_reno").acts, ElementsAre("sets CCA reno (active_established, passive_established)"));
  EXPECT_THAT(of("f_sets_reno").overrides, IsEmpty()) << "ours sets it again, after it";
  EXPECT_THAT(of("f_in_function").overrides, ElementsAre("sets CCA bbr (state)")) << "ours is not asked there";
  EXPECT_THAT(of("f_returns_0").overrides, ElementsAre(HasSubstr("can return 0")));
  EXPECT_TRUE(of("f_returns_0").loses_ecn);
  EXPECT_THAT(of("f_asks_for_ecn").overrides, ElementsAre("answers 1 (needs_ecn)")) << "ours never says no";
  EXPECT_FALSE(of("f_asks_for_ecn").loses_ecn);
  EXPECT_THAT(of("f_sets_config").overrides, ElementsAre("sets CCA cubic (connect)"));
  EXPECT_THAT(of("f_clears_ecn").overrides, ElementsAre("answers 0 (needs_ecn)"));
  EXPECT_TRUE(of("f_clears_ecn").loses_ecn);
  EXPECT_THAT(of("f_sets_windows").acts, ElementsAre("answers 40 (rwnd_init)", "sets the initial window (active_established)"));
  EXPECT_THAT(of("f_sets_windows").overrides, ElementsAre("sets the initial window (active_established)"));
}

TEST(Cgroups, WithinIsByFolders) {
  EXPECT_TRUE(within("/cg/a", "/cg/a"));
  EXPECT_TRUE(within("/cg/a/b", "/cg/a"));
  EXPECT_FALSE(within("/cg/ab", "/cg/a"));
  EXPECT_FALSE(within("/cg", "/cg/a"));
}

}  // namespace
}  // namespace sluice::agent
