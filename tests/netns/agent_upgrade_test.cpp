// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// What another release left, in the hands of the real agent: pins of another ABI, shared maps of another contract, a database
// of a newer format. Each is refused, both versions named, and stays as it is; connections do not notice.
#include <SQLiteCpp/SQLiteCpp.h>
#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <sluice/abi/policy.h>

#include <cerrno>
#include <fstream>
#include <iterator>

#include "netns/agent_fixture.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const auto* const kBpffs = testing::AddGlobalTestEnvironment(new PrivateBpffs);

constexpr char kCubic[] = "cubic@1.0.0";
constexpr int kExitConflict = 4;  // the unit names it: systemd does not restart into the same refusal
const Policy kPolicy{.uses = {.near = kNative, .far = kCubic, .external = kNative2, .unknown = kNative}};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class AgentUpgradeTest : public AgentWorldTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(AgentWorldTest::SetUp());
    ASSERT_OK(agent_->start());
    ASSERT_VALUE(applied, agent_->apply(kPolicy));
    ASSERT_VALUE(open, Connections::open(*topology_, 2));
    open_.emplace(std::move(open));
    ASSERT_NO_FATAL_FAILURE(expect_in_force());
  }
  void expect_in_force() { EXPECT_EQ(unlike(kPolicy.uses), ""); }
  std::set<std::string> pins() const {
    std::set<std::string> all;
    for (const auto& pin : fs::recursive_directory_iterator(fs::path(agent_->pin_dir()).parent_path().parent_path()))
      all.insert(pin.path());
    return all;
  }
};

TEST_F(AgentUpgradeTest, pins_of_another_abi_are_refused_and_left_alone) {
  ASSERT_OK(agent_->kill());
  const fs::path own = agent_->pin_dir();
  for (const int version : {SL_ABI + 1, SL_ABI - 1}) {
    const fs::path other = own.parent_path().parent_path() / fmt::format("v{}", version) / own.filename();
    fs::create_directories(other / "policy/maps");
    Fd map(::bpf_map_create(BPF_MAP_TYPE_ARRAY, "sl_config", 4, 4, 1, nullptr));
    ASSERT_TRUE(map);
    ASSERT_EQ(::bpf_obj_pin(map.get(), (other / "policy/maps/sl_config").c_str()), 0);
    const auto before = pins();
    ASSERT_VALUE(refused, agent_->run_daemon({}));
    EXPECT_EQ(refused.status, kExitConflict) << refused.text;
    EXPECT_THAT(refused.text, AllOf(HasSubstr(other.string()), HasSubstr(fmt::format("version {}", version)),
                                    HasSubstr(fmt::format("version {}", SL_ABI)), HasSubstr("sluice down")));
    EXPECT_EQ(pins(), before);
    expect_in_force();
    fs::remove_all(other.parent_path());
  }
  // Those of another instance are no hindrance.
  const fs::path stranger = own.parent_path().parent_path() / fmt::format("v{}", SL_ABI + 1) / "another";
  fs::create_directories(stranger);
  ASSERT_OK(agent_->start());
  fs::remove_all(stranger.parent_path());
  expect_in_force();
  ASSERT_VALUE(down, agent_->json({"down"}));
}

TEST_F(AgentUpgradeTest, a_shared_map_of_another_contract_is_not_taken_over) {
  // As if the running pipeline were of a release whose sl_sock means something else. Its programs keep to their version.
  const std::string path = agent_->pin_dir() + "/policy/maps/sl_schemas";
  Fd schemas(::bpf_obj_get(path.c_str()));
  ASSERT_TRUE(schemas);
  const std::uint32_t index = SL_SCHEMA_SOCK;
  sl_schema_entry entry{};
  ASSERT_EQ(::bpf_map_lookup_elem(schemas.get(), &index, &entry), 0);
  ASSERT_OK(agent_->kill());
  ++entry.version;
  ASSERT_EQ(::bpf_map_update_elem(schemas.get(), &index, &entry, 0), 0);
  ASSERT_OK(agent_->copy_bundle("policy/1.0.0", "1.0.1"));  // the next agent comes with another pipeline
  const auto before = pins();
  ASSERT_OK(agent_->start());
  Policy other = kPolicy;
  other.uses.near = kCubic;
  ASSERT_VALUE(refused, agent_->try_apply(other));
  EXPECT_EQ(refused.status, kExitConflict) << refused.text;
  const auto both = AllOf(HasSubstr(fmt::format("sl.sock@{}", SL_SCHEMA_SOCK_VERSION + 1)),
                          HasSubstr(fmt::format("sl.sock@{}", SL_SCHEMA_SOCK_VERSION)), HasSubstr("sluice down"));
  EXPECT_THAT(refused.text, both);
  EXPECT_EQ(pins(), before);
  expect_in_force();
  sl_schema_entry after{};
  ASSERT_EQ(::bpf_map_lookup_elem(schemas.get(), &index, &after), 0);
  EXPECT_EQ(after.version, entry.version);
  // It says so until somebody acts; the one that loaded it goes on with it.
  ASSERT_OK(agent_->kill());
  fs::remove_all(agent_->dir() + "/bundles/policy");
  --entry.version;
  ASSERT_EQ(::bpf_map_update_elem(schemas.get(), &index, &entry, 0), 0);
  ASSERT_OK(agent_->start());
  ASSERT_VALUE(applied, agent_->apply(other));
  ASSERT_VALUE(down, agent_->json({"down"}));
}

TEST_F(AgentUpgradeTest, a_database_of_a_newer_format_is_refused_and_left_alone) {
  ASSERT_OK(agent_->kill());
  const std::string file = agent_->state_dir() + "/agent.db";
  {
    SQLite::Database(file, SQLite::OPEN_READWRITE).exec("PRAGMA user_version=2");
  }
  const std::string before = bytes_of(file);
  const auto pinned = pins();
  ASSERT_VALUE(refused, agent_->run_daemon({}));
  EXPECT_EQ(refused.status, kExitConflict) << refused.text;
  EXPECT_THAT(refused.text, AllOf(HasSubstr(file), HasSubstr("format 2"), HasSubstr("format 1"), HasSubstr("sluice down"),
                                  HasSubstr("--reset-state")));
  EXPECT_EQ(bytes_of(file), before);
  EXPECT_EQ(pins(), pinned);
  ASSERT_OK(open_->more(*topology_, 1, {std::begin(kEverywhere), std::end(kEverywhere)}));
  expect_in_force();
  // The release that wrote it comes back.
  {
    SQLite::Database(file, SQLite::OPEN_READWRITE).exec("PRAGMA user_version=1");
  }
  ASSERT_OK(agent_->start());
  ASSERT_VALUE(status, agent_->json({"status"}));
  EXPECT_EQ(status["state"], "active");
  ASSERT_VALUE(down, agent_->json({"down"}));
}

}  // namespace
}  // namespace sluice::test
