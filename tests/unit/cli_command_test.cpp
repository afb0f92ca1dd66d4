// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Every command against an agent that answers as it is told: what is printed, for people and for programs, what was asked, the
// exit status, and every way in which an agent can let a command down.
#include <fcntl.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <yaml-cpp/yaml.h>

#include <csignal>

#include "base/file.h"
#include "cli/command_table.h"
#include "cli/process.h"
#include "cli/render.h"
#include "cli_fake_agent.h"

namespace sluice::cli {
namespace {

using google::protobuf::util::JsonStringToMessage;
using google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

template <class Message>
Message from_text(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

const char* const kStatus = R"(
  instance: "default" agent_version: "0.1.0" kernel: "6.18.44" state: "active" revision: 3 generation: 9
  applied_at_ns: 1700000000000000000 place: "eu/eu1/r3" uptime_ms: 7500000 places: 120 services: 1 rules: 9
  hooks { name: "sockops" link_id: 7 prog_id: 41 target: "/" ours: true }
  hooks { name: "sockops" prog_id: 12 target: "/" }
  ccas { name: "cubic" version: "1.0.0" kernel_name: "cubic.1.0.0" map_id: 31 origin: "bundle" state: "retiring" sockets: 50
         cwnd_mean_segments: 10.04 srtt_mean_us: 12345 }
  ccas { name: "cubic" version: "1.1.0" kernel_name: "cubic.1.1.0" map_id: 32 origin: "bundle" state: "active" sockets: 12000 listeners: 3
         cwnd_mean_segments: 42.5 srtt_mean_us: 812 }
  ccas { name: "bbr" kernel_name: "bbr" origin: "native" state: "active" sockets: 950 cwnd_mean_segments: 33 srtt_mean_us: 95 }
  ccas { name: "reno" kernel_name: "reno" origin: "native" }
  usage { cca: "cubic.1.0.0" map_id: 31 netns_ino: 100 locality: "cross_region" sockets: 50 }
  usage { cca: "cubic.1.1.0" map_id: 32 netns_ino: 100 locality: "cross_region" sockets: 9000 }
  usage { cca: "cubic.1.1.0" map_id: 32 netns_ino: 101 locality: "external" sockets: 3000 }
  usage { cca: "cubic.1.1.0" map_id: 32 netns_ino: 101 locality: "unknown" listener: true sockets: 3 }
  usage { cca: "bbr" netns_ino: 100 locality: "intra_dc" sockets: 950 }
  counters { name: "connect" value: 1234567 } counters { name: "no_rule" value: 0 })";

const char* const kSockets = R"(
  sockets { local: "10.0.0.1:443" remote: "10.2.0.7:50000" state: "established" cca: "cubic.1.1.0" version: "cubic@1.1.0" map_id: 32
            locality: "cross_region" place: "us/us1" service: "web" rule: "far" netns_ino: 100 netns: "blue" current: true ecn: "negotiated"
            cwnd_segments: 40 srtt_us: 1000 retransmits: 2 }
  sockets { local: "[fd00::1]:80" remote: "[::]:0" state: "listen" cca: "cubic.1.1.0" version: "cubic@1.1.0" map_id: 32 netns_ino: 101
            current: true ecn: "off" }
  sockets { local: "10.0.0.1:443" remote: "10.0.0.9:50001" state: "established" cca: "bbr" locality: "intra_dc" netns_ino: 100 netns: "blue"
            ecn: "off" cwnd_segments: 20 srtt_us: 90 outcome: "locked by a route's congctl" })";

const char* const kEcnProbe = R"probe(
  destination: "10.2.0.7" port: 22 source: "10.0.0.1" place: "us/us1" time_ns: 1700000000000000000 verdict: "ect-cleared"
  summary: "ECT(0) does not survive: ECT(0) is not-ECT at hop 2 (10.9.0.1)" rtt_us: 1200 hops_to_peer: 3 packets_sent: 67 duration_ms: 412
  ect0 { fate: "cleared" hop: 2 text: "ECT(0) is not-ECT at hop 2 (10.9.0.1)" } ect1 { fate: "intact" hop: 2 text: "still at hop 2" }
  ce { fate: "intact" at_destination: true text: "5 of 5 echoed by the peer" } dscp_kept { fate: "intact" hop: 2 text: "still 0 at hop 2" }
  inbound { fate: "unknown" text: "the peer sent no data" } delivery { ecn: "CE" sent: 5 arrived: 5 }
  hops { hop: 1 protocol: "tcp" sent: "ECT(0)" seen: "ECT(0)" router: "10.0.0.254" }
  hops { hop: 1 protocol: "udp" sent: "ECT(0)" seen: "ECT(0)" router: "10.0.0.254" }
  hops { hop: 2 protocol: "tcp" sent: "ECT(0)" seen: "not-ECT" router: "10.9.0.1" })probe";

const char* const kMigrated = R"(seen: 12950 moved: 12000 namespaces: 2 passes: 1 duration_ms: 13.4 complete: true)";
const char* const kIncomplete = R"(
  seen: 100 moved: 97 failed: 3 namespaces: 1 passes: 2 duration_ms: 2000 complete: false without_ecn: 5
  left { reason: "locked by a route's congctl" sockets: 3
         example { local: "10.0.0.1:443" remote: "10.2.0.7:5" state: "established" cca: "bbr" netns: "blue" } })";

v1::Progress step(unsigned number, unsigned of, const std::string& message) {
  v1::Progress progress;
  progress.set_step(number);
  progress.set_steps(of);
  progress.set_message(message);
  return progress;
}

// A finished stream: two steps and the result, which `set` fills in.
template <class Set>
std::vector<v1::Progress> stream(Set&& set) {
  v1::Progress last = step(2, 2, "done");
  set(last);
  return {step(1, 2, "load cubic@1.1.0"), step(2, 2, "switch generation"), last};
}

class Commands : public testing::Test {
 protected:
  TempFolder folder;
  Cli cli{folder};
  FakeAgent agent;
  void SetUp() override { agent.serve(folder / "run/agent.sock"); }

  std::string document(const std::string& text = "kind: Host\n") {
    const std::string path = folder / "policy.yaml";
    EXPECT_TRUE(write_file_atomic(path, text));
    return path;
  }
  template <class Message>
  void expect_json(const Message& expected) {
    Message printed;
    ASSERT_TRUE(JsonStringToMessage(cli.out(), &printed).ok()) << cli.out();
    EXPECT_TRUE(MessageDifferencer::Equals(printed, expected)) << cli.out();
  }
};

// ---- observation
// -------------------------------------------------------------------------------------------------------------

TEST_F(Commands, StatusTellsWhatRunsWhereAtAGlance) {
  agent.status = from_text<v1::StatusReply>(kStatus);
  EXPECT_EQ(cli({"status"}), kOk);
  EXPECT_EQ(cli.err(), "");
  EXPECT_EQ(cli.out(), R"(sluice default: active, revision 3 applied 10 min ago, generation 9
agent 0.1.0 up 2 h 5 min, Linux 6.18.44
place eu/eu1/r3; 120 places, 1 service, 9 rules

CCA    VERSION  STATE     SOCKETS  SHARE  CWND     SRTT  LISTENERS  NETNS  WHERE
cubic  1.1.0    active     12,000    92%  42.5   812 us          3      2  cross_region 75%, external 25%
bbr    native   active        950   7.3%  33.0    95 us          0      1  intra_dc 100%
cubic  1.0.0    retiring       50   0.4%  10.0  12.3 ms          0      1  cross_region 100%

HOOK     OWNER    LINK  PROGRAM  TARGET
sockops  sluice      7       41  /
sockops  foreign     -       12  /
)");
  EXPECT_TRUE(agent.status_request.count_sockets());
  EXPECT_EQ(cli({"status", "--no-sockets", "--verbose"}), kOk);
  EXPECT_FALSE(agent.status_request.count_sockets());
  EXPECT_THAT(cli.out(), HasSubstr("COUNTER      VALUE\nconnect  1,234,567\n"));
}

TEST_F(Commands, StatusPutsProblemsFirstAndExitsDegraded) {
  agent.status = from_text<v1::StatusReply>(kStatus);
  agent.status.set_state("degraded");
  agent.status.add_problems("some sockets are not on what their rule says; `sluice migrate` lists why");
  agent.status.add_rolled_back("cubic@1.2.0");
  EXPECT_EQ(cli({"status"}), kDegraded);
  EXPECT_THAT(cli.out(), HasSubstr("\nProblems\n  ! some sockets are not on what their rule says; `sluice migrate` lists why\n "
                                   " ! cubic@1.2.0 was rolled back"));
  EXPECT_LT(cli.out().find("Problems"), cli.out().find("VERSION"));
  cli.environment.out_is_terminal = true;
  cli.environment.columns = 50;
  EXPECT_EQ(cli({"status"}), kDegraded);
  EXPECT_THAT(cli.out(), HasSubstr("\x1b[31mdegraded\x1b[0m"));
  EXPECT_THAT(cli.out(), HasSubstr("some sockets are not on what their rule says;\n    `sluice migrate` lists why\n"));
  cli.variables["NO_COLOR"] = "1";
  EXPECT_EQ(cli({"status"}), kDegraded);
  EXPECT_THAT(cli.out(), Not(HasSubstr("\x1b")));
  cli.variables.clear();
  EXPECT_EQ(cli({"status", "--no-color"}), kDegraded);
  EXPECT_THAT(cli.out(), Not(HasSubstr("\x1b")));
}

TEST_F(Commands, StatusOfAnIdleAgentSaysWhatToDo) {
  agent.status =
      from_text<v1::StatusReply>(R"(instance: "t1" agent_version: "0.1.0" kernel: "6.18.44" state: "idle" uptime_ms: 1500)");
  EXPECT_EQ(cli({"status"}), kOk);
  EXPECT_EQ(cli.out(),
            "sluice t1: idle\nagent 0.1.0 up 1.5 s, Linux 6.18.44\nno policy is in force; `sluice apply FILE` sets one\n");
}

TEST_F(Commands, StatusForProgramsIsTheReply) {
  agent.status = from_text<v1::StatusReply>(kStatus);
  EXPECT_EQ(cli({"status", "--output", "json"}), kOk);
  expect_json(agent.status);
  EXPECT_THAT(cli.out(), HasSubstr("\"rolled_back\": []"));  // defaults are printed
  EXPECT_EQ(cli({"status", "--output", "yaml"}), kOk);
  const YAML::Node node = YAML::Load(cli.out());
  EXPECT_EQ(node["ccas"][1]["kernel_name"].as<std::string>(), "cubic.1.1.0");
  EXPECT_EQ(node["hooks"][1]["ours"].as<bool>(), false);
}

TEST_F(Commands, StatusWaitsUntilNothingIsDegraded) {
  agent.status = from_text<v1::StatusReply>(kStatus);
  agent.status.set_state("degraded");
  int looks = 0;
  agent.before_status = [&] {
    if (++looks == 3) agent.status.set_state("active");
  };
  EXPECT_EQ(cli({"status", "--wait"}), kOk);
  EXPECT_EQ(looks, 3);
  EXPECT_THAT(cli.out(), StartsWith("sluice default: active"));
  agent.status.set_state("degraded");
  EXPECT_EQ(cli({"status", "--wait", "--timeout", "0.5"}), kDegraded);
  EXPECT_THAT(cli.out(), StartsWith("sluice default: degraded"));
}

TEST_F(Commands, WatchRedrawsUntilInterrupted) {
  agent.status = from_text<v1::StatusReply>(kStatus);
  cli.environment.out_is_terminal = true;
  cli.environment.columns = 200;
  cli.out_text.on_flush = [&](const std::string& text) {
    std::size_t frames = 0;
    for (std::size_t at = 0; (at = text.find("\x1b[J", at)) != std::string::npos; ++at) ++frames;
    if (frames == 2) cli.interrupt();
  };
  EXPECT_EQ(cli({"status", "--watch", "--interval", "0.01", "--no-color"}), kOk);
  EXPECT_THAT(cli.out(), StartsWith("\x1b[2J\x1b[Hsluice default: active"));
  EXPECT_EQ(cli.err(), "");
}

TEST_F(Commands, WatchForProgramsIsOneObjectALine) {
  agent.status = from_text<v1::StatusReply>(kStatus);
  cli.out_text.on_flush = [&](const std::string& text) {
    if (std::count(text.begin(), text.end(), '\n') == 2) cli.interrupt();
  };
  EXPECT_EQ(cli({"status", "--watch", "--interval", "0.01", "-o", "json"}), kOk);
  std::istringstream lines(cli.out());
  std::string line;
  int count = 0;
  for (; std::getline(lines, line); ++count) {
    v1::StatusReply printed;
    EXPECT_TRUE(JsonStringToMessage(line, &printed).ok()) << line;
  }
  EXPECT_EQ(count, 2);
}

TEST_F(Commands, ExplainReadsAsSentences) {
  agent.explain = from_text<v1::ExplainReply>(R"(
    place: "us/us1/r1" prefix: "10.2.0.0/16" locality: "cross_region" service: "web" rule: "far" cca: "cubic.1.1.0" target: "cubic@1.1.0"
    parameters { index: 2 scope: "service web" values { key: "iw" value: 100 } values { key: "beta" value: 717 } }
    why: "10.2.0.7 lies in 10.2.0.0/16, which is us/us1/r1" why: "this host is in eu, so the locality is cross_region"
    notes: "cubic@1.2.0 is rolled back: cubic@1.1.0 stands in")");
  EXPECT_EQ(cli({"explain", "10.2.0.7:443", "--from", "10.0.0.1", "--port", "80", "--pid", "7", "--cgroup", "/web"}), kOk);
  EXPECT_EQ(cli.out(), R"(10.2.0.7:443 gets cubic@1.1.0, in the kernel cubic.1.1.0
  1. 10.2.0.7 lies in 10.2.0.0/16, which is us/us1/r1
  2. this host is in eu, so the locality is cross_region
  ! cubic@1.2.0 is rolled back: cubic@1.1.0 stands in

place           us/us1/r1
prefix          10.2.0.0/16
locality        cross_region
service         web
rule            far
parameters      beta=717 iw=100 (service web)
)");
  EXPECT_EQ(agent.explain_request.destination(), "10.2.0.7:443");
  EXPECT_EQ(agent.explain_request.source(), "10.0.0.1");
  EXPECT_EQ(agent.explain_request.local_port(), 80U);
  EXPECT_EQ(agent.explain_request.pid(), 7);
  EXPECT_EQ(agent.explain_request.cgroup(), "/web");
  *agent.explain.mutable_ecn() = from_text<v1::EcnProbe>(kEcnProbe);
  EXPECT_EQ(cli({"explain", "10.2.0.8"}), kOk);
  EXPECT_THAT(cli.out(),
              HasSubstr("ecn             ect-cleared: ECT(0) does not survive: ECT(0) is not-ECT at hop 2 (10.9.0.1); 10.2.0.7 "
                        "port 22 was probed 10 min ago\n"
                        "ecn ECT(0)      cleared: ECT(0) is not-ECT at hop 2 (10.9.0.1)\n"));
  EXPECT_THAT(cli.out(), Not(HasSubstr("ecn CE")));  // only what is not as it should be
  agent.explain.clear_ecn();
  agent.explain.clear_parameters();
  EXPECT_EQ(cli({"explain", "10.2.0.7", "--output", "yaml"}), kOk);
  EXPECT_EQ(cli.out(), R"(place: us/us1/r1
prefix: "10.2.0.0/16"
locality: cross_region
service: web
rule: far
cca: cubic.1.1.0
target: cubic@1.1.0
why:
  - "10.2.0.7 lies in 10.2.0.0/16, which is us/us1/r1"
  - "this host is in eu, so the locality is cross_region"
notes:
  - "cubic@1.2.0 is rolled back: cubic@1.1.0 stands in"
)");
}

TEST_F(Commands, SocketsAreOneLineEach) {
  agent.sockets = {from_text<v1::Sockets>(kSockets)};
  EXPECT_EQ(cli({"sockets", "--cca", "cubic", "--locality", "cross_region", "--netns", "100", "--limit", "5"}), kOk);
  EXPECT_EQ(
      cli.out(),
      R"(STATE        LOCAL         REMOTE          CCA          VERSION      LOCALITY      SERVICE  RULE  ECN         CWND    SRTT  RETR  NETNS  NOTE
established  10.0.0.1:443  10.2.0.7:50000  cubic.1.1.0  cubic@1.1.0  cross_region  web      far   negotiated    40  1.0 ms     2  blue
listen       [fd00::1]:80  -               cubic.1.1.0  cubic@1.1.0  -             -        -     off            -       -     0  101
established  10.0.0.1:443  10.0.0.9:50001  bbr          -            intra_dc      -        -     off           20   90 us     0  blue   locked by a route's congctl
)");
  EXPECT_EQ(agent.sockets_request.cca(), "cubic");
  EXPECT_EQ(agent.sockets_request.locality(), "cross_region");
  EXPECT_EQ(agent.sockets_request.netns_ino(), 100U);
  EXPECT_EQ(agent.sockets_request.limit(), 5U);
}

TEST_F(Commands, SocketsShowTheirEcn) {
  agent.sockets = {from_text<v1::Sockets>(R"(
      sockets { local: "10.0.0.1:443" remote: "10.2.0.7:50000" state: "established" cca: "dctcp.1.0.0" version: "dctcp@1.0.0" map_id: 32
                rule: "far" netns_ino: 100 ecn: "echoing" sends_ect: true ecn_echoed: true }
      sockets { local: "10.0.0.1:80" state: "listen" cca: "cubic.1.0.0" version: "cubic@1.0.0" map_id: 31 netns_ino: 100 }
      sockets { local: "10.0.0.1:443" remote: "10.0.0.9:5" state: "established" cca: "dctcp" netns_ino: 101 netns: "blue" ecn: "blind"
                sends_ect: true }
      sockets { local: "10.0.0.1:443" remote: "10.0.0.9:6" state: "established" cca: "cubic.1.0.0" version: "cubic@1.0.0" map_id: 31
                rule: "far" netns_ino: 100 ecn: "refused" })")};
  EXPECT_EQ(cli({"sockets", "--ecn"}), kOk);
  EXPECT_EQ(cli.out(),
            R"(STATE        LOCAL         REMOTE          CCA          VERSION      RULE  ECN      SENDS  ECHOED  NETNS
established  10.0.0.1:443  10.2.0.7:50000  dctcp.1.0.0  dctcp@1.0.0  far   echoing  ECT    yes     100
listen       10.0.0.1:80   -               cubic.1.0.0  cubic@1.0.0  -     -        -      -       100
established  10.0.0.1:443  10.0.0.9:5      dctcp        -            -     blind    ECT    -       blue
established  10.0.0.1:443  10.0.0.9:6      cubic.1.0.0  cubic@1.0.0  far   refused  -      -       100
)");
}

TEST_F(Commands, SocketsOfManyBatchesAreOneMessageForPrograms) {
  const auto batch = from_text<v1::Sockets>(kSockets);
  agent.sockets = {batch, batch};
  v1::Sockets both = batch;
  both.MergeFrom(batch);
  EXPECT_EQ(cli({"sockets", "--output", "json"}), kOk);
  expect_json(both);
  EXPECT_EQ(cli({"sockets", "--output", "yaml"}), kOk);
  const YAML::Node node = YAML::Load(cli.out());
  ASSERT_EQ(node["sockets"].size(), 6U);
  EXPECT_EQ(node["sockets"][4]["local"].as<std::string>(), "[fd00::1]:80");
  agent.sockets.clear();
  EXPECT_EQ(cli({"sockets", "--output", "json"}), kOk);
  expect_json(v1::Sockets());
  EXPECT_EQ(cli({"sockets", "--output", "yaml"}), kOk);
  EXPECT_EQ(cli.out(), "sockets: []\n");
  EXPECT_EQ(cli({"sockets"}), kOk);
  EXPECT_EQ(cli.out() + cli.err(), "no sockets\n");
}

TEST_F(Commands, SocketsAreCountedByAKey) {
  agent.sockets = {from_text<v1::Sockets>(kSockets), from_text<v1::Sockets>(kSockets)};
  EXPECT_EQ(cli({"sockets", "--by", "version"}), kOk);
  EXPECT_EQ(cli.out(), R"(VERSION      SOCKETS  SHARE  CWND    SRTT  RETR  LISTENERS
cubic@1.1.0        2    50%  40.0  1.0 ms     4          2
kernel:bbr         2    50%  20.0   90 us     0          0
)");
  EXPECT_EQ(cli({"sockets", "--by", "netns"}), kOk);
  EXPECT_EQ(cli.out(), R"(NETNS  SOCKETS  SHARE  CWND    SRTT  RETR  LISTENERS
blue         4   100%  30.0  545 us     4          0
101          0     0%     -       -     0          2
)");
  EXPECT_EQ(cli({"sockets", "--by", "locality"}), kOk);
  EXPECT_THAT(cli.out(), HasSubstr("cross_region        2    50%"));
  EXPECT_EQ(cli({"sockets", "--by", "cca", "--output", "yaml"}), kOk);
  const YAML::Node node = YAML::Load(cli.out());
  EXPECT_EQ(node["by"].as<std::string>(), "cca");
  ASSERT_EQ(node["usage"].size(), 3U);  // bbr, cubic, and cubic's listeners
  EXPECT_EQ(node["usage"][0]["cca"].as<std::string>(), "bbr");
  EXPECT_EQ(node["usage"][0]["sockets"].as<std::string>(), "2");
  EXPECT_EQ(node["usage"][2]["listener"].as<bool>(), true);
}

const char* const kCcas = R"ccas(
  ccas { name: "cubic" version: "1.1.0" kernel_name: "cubic.1.1.0" map_id: 32 origin: "bundle" transitional: true ecn: "tolerates" state: "active"
         sockets: 12000 listeners: 1 other_users: "netns 4026532000: sysctl default" memory_bytes: 65536 digest: "sha256:ab"
         parameter_sets { scope: "global" values { key: "beta" value: 717 } } counters { name: "init" value: 12001 } counters { name: "release" }
         programs: "cubic_init (id 40)" cwnd_mean_segments : 42.5 srtt_mean_us : 812
}
  ccas { name: "reno" kernel_name: "reno" origin: "native" })ccas";

TEST_F(Commands, CcasAreListedAndShown) {
  agent.ccas = from_text<v1::CcasReply>(kCcas);
  EXPECT_EQ(cli({"cca", "list"}), kOk);
  EXPECT_EQ(cli.out(),
            R"(NAME                  VERSION  KERNEL NAME  MAP  ORIGIN  STATE   ECN        SOCKETS  LISTENERS  OTHER USERS
cubic (transitional)  1.1.0    cubic.1.1.0   32  bundle  active  tolerates   12,000          1            1
reno                  -        reno           -  native  -       -                0          0            0
)");
  EXPECT_EQ(agent.ccas_request.name(), "");
  agent.ccas.mutable_ccas()->RemoveLast();
  EXPECT_EQ(cli({"cca", "show", "cubic@1.1.0"}), kOk);
  EXPECT_EQ(agent.ccas_request.name(), "cubic@1.1.0");
  EXPECT_EQ(cli.out(), R"(cubic@1.1.0
state           active, transitional
origin          bundle
kernel name     cubic.1.1.0
map id          32
ecn             tolerates
sockets         12,000, 1 listener
mean cwnd       42.5 segments
mean srtt       812 us
memory          64.0 KiB
digest          sha256:ab
used by         netns 4026532000: sysctl default
program         cubic_init (id 40)
parameters      global: beta=717
counter         init 12,001
)");
  EXPECT_EQ(cli({"cca", "show", "cubic@1.1.0", "-o", "json"}), kOk);
  expect_json(agent.ccas);
}

TEST_F(Commands, EventsAreLinesAndCanBeFollowed) {
  agent.events = {
      from_text<v1::Event>(R"(id: 7 time_ns: 1700000000000000000 kind: "applied" severity: "info" message: "revision 3")"),
      from_text<v1::Event>(
          R"(id: 8 time_ns: 1700000001000000000 kind: "rolled-back" severity: "warning" message: "cubic@1.1.0\x1b[2J")")};
  EXPECT_EQ(cli({"events", "--limit", "2", "--after", "6"}), kOk);
  EXPECT_EQ(cli.out(),
            "2023-11-14 22:13:20Z      7  info     applied       revision 3\n"
            "2023-11-14 22:13:21Z      8  warning  rolled-back   cubic@1.1.0?[2J\n");
  EXPECT_EQ(agent.events_request.limit(), 2U);
  EXPECT_EQ(agent.events_request.after_id(), 6U);
  EXPECT_FALSE(agent.events_request.follow());
  EXPECT_EQ(cli({"events", "--output", "json"}), kOk);
  EXPECT_EQ(agent.events_request.limit(), 100U);
  EXPECT_THAT(cli.out(), HasSubstr("\"message\":\"revision 3\"}\n{\"id\":\"8\""));

  agent.stuck = true;  // a stream that stays open
  cli.out_text.on_flush = [&](const std::string& text) {
    if (text.find("rolled-back") != std::string::npos) cli.interrupt();
  };
  EXPECT_EQ(cli({"events", "--follow"}), kOk);
  EXPECT_TRUE(agent.events_request.follow());
  EXPECT_EQ(cli.err(), "");
}

TEST_F(Commands, FollowingEndsWithTheTimeoutThatWasAskedFor) {
  agent.stuck = true;
  EXPECT_EQ(cli({"events", "--follow", "--timeout", "0.2"}), kOk);
}

const char* const kDoctor = R"(kernel: "6.1.0" checks { name: "btf" verdict: "ok" what: "present" }
  checks { name: "struct-ops-link" verdict: "missing" what: "BPF_F_LINK is refused" why: "swaps versions atomically" remedy: "install Linux 6.4" min_kernel: "6.4" }
  checks { name: "known-bug x" verdict: "warning" what: "iter/tcp repeats sockets" })";

TEST_F(Commands, DoctorSaysWhatIsMissingAndHowToMendIt) {
  agent.doctor = from_text<v1::DoctorReply>(kDoctor);
  EXPECT_EQ(cli({"doctor"}), kDegraded);
  EXPECT_EQ(cli.out(), R"(Linux 6.1.0

CHECK            VERDICT  FOUND
btf              ok       present
struct-ops-link  missing  BPF_F_LINK is refused
known-bug x      warning  iter/tcp repeats sockets

To mend
  ! struct-ops-link: BPF_F_LINK is refused (swaps versions atomically); Linux 6.4 or newer has it
    fix: install Linux 6.4
  ! known-bug x: iter/tcp repeats sockets
)");
  agent.doctor.mutable_checks()->DeleteSubrange(1, 1);
  EXPECT_EQ(cli({"doctor", "-o", "json"}), kOk);  // a warning is no failure
  expect_json(agent.doctor);
}

const char* const kAudit = R"pb(
  verdict: "overridden"
  problems: "reno_setter (id 52) on sockops acts after or beside ours: sets CCA reno (state); ask its owner, process 812 (otherd)"
  hooks {
    hook: "sockops"
    cgroup: "/sys/fs/cgroup"
    attached: true
    programs: 2
    limit: 64
    list {
      prog_id: 41
      link_id: 7
      name: "sl_sockops"
      tag: "0123456789abcdef"
      cgroup: "/sys/fs/cgroup"
      attach_mode: "multi"
      order: "ours"
      holders: "pin /sys/fs/bpf/sluice/v1/default/policy/link/sockops"
      verdict: "ours"
      loaded_at_ns: 1700000000000000000
    }
    list {
      prog_id: 52
      name: "reno_setter"
      tag: "fedcba9876543210"
      uid: 1000
      cgroup: "/sys/fs/cgroup"
      attach_mode: "override"
      order: "after"
      holders: "process 812 (otherd)"
      acts: "sets CCA reno (state)"
      overrides: "sets CCA reno (state)"
      verdict: "overrides"
      sockets: 1200
      loaded_at_ns: 1700000000000000000
    }
  }
  ccas { name: "vegas2" map_id: 90 link_id: 91 holders: "process 9 (lab)" }
  overridden {
    kind: "cca"
    rule: "far"
    wanted: "cubic.1.0.0"
    runs: "reno"
    prog_ids: 52
    cause: "reno_setter (id 52)"
    sockets: 1200
  }
  repairs { kind: "hook" found: 2 last_at_ns: 1700000000000000000 what: "the sockops program is not attached: x" })pb";

TEST_F(Commands, AuditNamesWhoOverrulesUsAndDegrades) {
  agent.audit = from_text<v1::AuditReply>(kAudit);
  EXPECT_EQ(cli({"audit"}), kDegraded);
  EXPECT_FALSE(agent.audit_request.skip_sockets());
  EXPECT_EQ(cli.out(), R"(overridden

Problems
  ! reno_setter (id 52) on sockops acts after or beside ours: sets CCA reno (state); ask its owner, process 812 (otherd)

sockops at /sys/fs/cgroup: attached, 2 of 64 programs
ORDER  PROGRAM      ID  LINK  VERDICT    SOCKETS  CGROUP          HELD BY                                                CAN
ours   sl_sockops   41     7  ours             -  /sys/fs/cgroup  pin /sys/fs/bpf/sluice/v1/default/policy/link/sockops  -
after  reno_setter  52     -  overrides    1,200  /sys/fs/cgroup  process 812 (otherd)                                   sets CCA reno (state)

Overridden sockets
SOCKETS  RULE  WANTED       RUNS  BY
  1,200  far   cubic.1.0.0  reno  reno_setter (id 52)

CCAs of others
NAME    MAP  LINK  HELD BY
vegas2   90    91  process 9 (lab)

Found damaged since the agent started
DAMAGE  FOUND  LAST                  WHAT
hook        2  2023-11-14 22:13:20Z  the sockops program is not attached: x
)");
  EXPECT_EQ(cli({"audit", "--verbose"}), kDegraded);
  EXPECT_THAT(cli.out(), HasSubstr("tag fedcba9876543210"));
  EXPECT_THAT(cli.out(), HasSubstr("by uid 1000"));
  EXPECT_THAT(cli.out(), HasSubstr("without a link, override"));
  EXPECT_EQ(cli({"audit", "--output", "json"}), kDegraded);
  expect_json(agent.audit);
}

TEST_F(Commands, AnAuditWithoutAnythingIsNoFailure) {
  agent.audit = from_text<v1::AuditReply>(
      R"(verdict: "clean" hooks { hook: "sockops" cgroup: "/" attached: true programs: 1 limit: 64 })");
  EXPECT_EQ(cli({"audit", "--no-sockets"}), kOk);
  EXPECT_TRUE(agent.audit_request.skip_sockets());
  EXPECT_EQ(cli.out(), "clean\n\nsockops at /: attached, 1 of 64 programs\nno program\n");
}

// ---- change
// ------------------------------------------------------------------------------------------------------------------

TEST_F(Commands, ApplySendsTheDocumentAndSumsUp) {
  agent.progress = stream([](v1::Progress& last) {
    *last.mutable_applied() = from_text<v1::ApplyResult>(
        R"(revision: 4 generation: 10 changed: true duration_ms: 41 warnings: "rule far is never used")");
    *last.mutable_applied()->mutable_migration() = from_text<v1::MigrateResult>(kMigrated);
  });
  const std::string file = document("kind: Host\nplace: x\n");
  EXPECT_EQ(cli({"apply", file}), kOk);
  EXPECT_EQ(cli.out(), R"(policy applied as revision 4, generation 10, in 41.0 ms
12,000 of 12,950 sockets moved, in 2 namespaces, 13.4 ms
  ! rule far is never used
)");
  EXPECT_EQ(cli.err(), "");  // progress only on a terminal, or when asked for
  EXPECT_EQ(agent.apply_request.document(), "kind: Host\nplace: x\n");
  EXPECT_EQ(agent.apply_request.source_name(), file);
  EXPECT_EQ(agent.apply_request.timeout_ms(), 0U);
  EXPECT_FALSE(agent.apply_request.no_migrate() || agent.apply_request.clear_rollbacks());

  EXPECT_EQ(cli({"apply", file, "--no-migrate", "--clear-rollbacks", "--timeout", "10", "--quiet"}), kOk);
  EXPECT_EQ(cli.out() + cli.err(), "");
  EXPECT_TRUE(agent.apply_request.no_migrate() && agent.apply_request.clear_rollbacks());
  EXPECT_GT(agent.apply_request.timeout_ms(), 5000U);
  EXPECT_LE(agent.apply_request.timeout_ms(), 9000U);  // less than ours, so that the answer arrives

  EXPECT_EQ(cli({"apply", file, "--verbose", "-o", "json"}), kOk);
  EXPECT_EQ(cli.err(), "[1/2] load cubic@1.1.0\n[2/2] switch generation\n");
  expect_json(agent.progress.back().applied());
}

TEST_F(Commands, ProgressIsOneLineOnATerminalAndLeavesNothing) {
  agent.progress = stream([](v1::Progress& last) { last.mutable_applied()->set_revision(4); });
  cli.environment.err_is_terminal = true;
  cli.environment.columns = 16;
  EXPECT_EQ(cli({"apply", document()}), kOk);
  EXPECT_EQ(cli.err(), "\r\x1b[K[1/2] load cub…\r\x1b[K[2/2] switch g…\r\x1b[K");
  EXPECT_EQ(cli.out(), "nothing to change: the kernel was already as revision 4 says\n");
}

TEST_F(Commands, ApplyThatLeavesSocketsBehindIsDegraded) {
  agent.progress = stream([](v1::Progress& last) {
    auto& applied = *last.mutable_applied();
    applied = from_text<v1::ApplyResult>(R"(revision: 4 generation: 10 changed: true duration_ms: 2100
      retained { cca: "cubic@1.0.0" users: "1 socket: 10.0.0.1:443" users: "route 10.0.0.0/8 dev eth0" })");
    *applied.mutable_migration() = from_text<v1::MigrateResult>(kIncomplete);
  });
  EXPECT_EQ(cli({"apply", document()}), kDegraded);
  EXPECT_EQ(cli.out(), R"(policy applied as revision 4, generation 10, in 2.1 s
97 of 100 sockets moved, 3 failed, in 1 namespace, 2.0 s
  ! 3 sockets left: locked by a route's congctl; such as 10.0.0.1:443 -> 10.2.0.7:5 (established, bbr, netns blue)
  ! 5 connections without ECN: the transitional CCA instead of one that needs it
  ! cubic@1.0.0 stays registered, it is used by
      1 socket: 10.0.0.1:443
      route 10.0.0.0/8 dev eth0
)");
}

TEST_F(Commands, DiffShowsChangesAndSteps) {
  const std::string file = document();
  EXPECT_EQ(cli({"diff", file}), kOk);
  EXPECT_EQ(cli.out(), "no difference: the kernel is as the document says\n");
  agent.diff = from_text<v1::DiffReply>(R"(changes: "+ rule far" changes: "- rule near" changes: "place eu -> us"
    steps { what: "load cubic@1.1.0" inverse: "unload it" } steps { what: "publish generation 10" })");
  EXPECT_EQ(cli({"diff", file}), kOk);
  EXPECT_EQ(cli.out(),
            "+ rule far\n- rule near\nplace eu -> us\n\nApply would\n  1. load cubic@1.1.0\n  2. publish generation 10\n");
  EXPECT_EQ(cli({"diff", file, "--verbose"}), kOk);
  EXPECT_THAT(cli.out(), HasSubstr("  1. load cubic@1.1.0\n     undone by: unload it\n"));
  cli.environment.out_is_terminal = true;
  EXPECT_EQ(cli({"diff", file}), kOk);
  EXPECT_THAT(cli.out(), StartsWith("\x1b[32m+ rule far\x1b[0m\n\x1b[31m- rule near\x1b[0m\n"));
  EXPECT_EQ(cli({"diff", file, "-o", "json"}), kOk);
  expect_json(agent.diff);
}

TEST_F(Commands, MigrateReportsWhatIsLeft) {
  agent.progress = stream([](v1::Progress& last) { *last.mutable_migrated() = from_text<v1::MigrateResult>(kIncomplete); });
  EXPECT_EQ(cli({"migrate"}), kDegraded);
  EXPECT_EQ(cli.out(), R"(97 of 100 sockets moved, 3 failed, in 1 namespace, 2.0 s, 2 passes
  ! 3 sockets left: locked by a route's congctl; such as 10.0.0.1:443 -> 10.2.0.7:5 (established, bbr, netns blue)
  ! 5 connections without ECN: the transitional CCA instead of one that needs it
)");
  agent.progress = stream([](v1::Progress& last) { *last.mutable_migrated() = from_text<v1::MigrateResult>(kMigrated); });
  EXPECT_EQ(cli({"migrate"}), kOk);
  EXPECT_FALSE(agent.migrate_request.dry_run());
  EXPECT_EQ(cli({"migrate", "--dry-run"}), kOk);
  EXPECT_TRUE(agent.migrate_request.dry_run());
  EXPECT_EQ(cli.out(), "12,000 of 12,950 sockets would move, in 2 namespaces\n");
}

TEST_F(Commands, RollbackNamesBothVersions) {
  const auto rolled = [](bool retired) {
    return stream([=](v1::Progress& last) {
      auto& result = *last.mutable_rolled_back();
      result = from_text<v1::RollbackResult>(R"(from: "cubic@1.1.0" to: "cubic@1.0.0" duration_ms: 180)");
      result.set_retired(retired);
      *result.mutable_migration() = from_text<v1::MigrateResult>(kMigrated);
    });
  };
  agent.progress = rolled(true);
  EXPECT_EQ(cli({"rollback"}), kOk);
  EXPECT_EQ(agent.rollback_request.target(), "");
  EXPECT_EQ(cli.out(), R"(cubic@1.1.0 replaced by cubic@1.0.0 in 180 ms
12,000 of 12,950 sockets moved, in 2 namespaces, 13.4 ms
cubic@1.1.0 left the kernel
)");
  agent.progress = rolled(false);
  EXPECT_EQ(cli({"rollback", "cubic@1.1.0"}), kDegraded);
  EXPECT_EQ(agent.rollback_request.target(), "cubic@1.1.0");
  EXPECT_THAT(cli.out(), HasSubstr("  ! cubic@1.1.0 is still in the kernel\n"));
}

TEST_F(Commands, DownSaysWhatItRestored) {
  agent.progress = stream([](v1::Progress& last) {
    *last.mutable_down() = from_text<v1::DownResult>(R"(restored: "net.ipv4.tcp_congestion_control = bbr" duration_ms: 90)");
    *last.mutable_down()->mutable_migration() = from_text<v1::MigrateResult>(kMigrated);
  });
  EXPECT_EQ(cli({"down", "--move-to", "bbr"}), kOk);
  EXPECT_EQ(agent.down_request.move_to(), "bbr");
  EXPECT_EQ(cli.out(), R"(down in 90.0 ms; nothing of this instance is left in the kernel
12,000 of 12,950 sockets moved, in 2 namespaces, 13.4 ms
  - restored net.ipv4.tcp_congestion_control = bbr
)");
}

TEST_F(Commands, EcnProbeShowsFindingsAndHops) {
  const auto probe = from_text<v1::EcnProbe>(kEcnProbe);
  agent.progress = stream([&](v1::Progress& last) { *last.mutable_ecn_probed() = probe; });
  EXPECT_EQ(cli({"ecn", "probe", "10.2.0.7:22", "--from", "10.0.0.1", "--dscp", "10", "--timeout", "10"}), kDegraded);
  EXPECT_EQ(agent.ecn_probe_request.destination(), "10.2.0.7");
  EXPECT_EQ(agent.ecn_probe_request.port(), 22U);
  EXPECT_EQ(agent.ecn_probe_request.source(), "10.0.0.1");
  EXPECT_EQ(agent.ecn_probe_request.dscp(), 10U);
  EXPECT_GT(agent.ecn_probe_request.timeout_ms(), 0U);
  EXPECT_LT(agent.ecn_probe_request.timeout_ms(), 10'000U);
  EXPECT_EQ(cli.err(), "");
  EXPECT_EQ(cli.out(), R"(10.2.0.7 port 22 from 10.0.0.1: ect-cleared
ECT(0) does not survive: ECT(0) is not-ECT at hop 2 (10.9.0.1)

WHAT     FATE     EVIDENCE
ECT(0)   cleared  ECT(0) is not-ECT at hop 2 (10.9.0.1)
ECT(1)   intact   still at hop 2
CE       intact   5 of 5 echoed by the peer
DSCP     intact   still 0 at hop 2
inbound  unknown  the peer sent no data

HOP  ROUTER      TCP ECT(0)  UDP ECT(0)  DSCP
  1  10.0.0.254  ECT(0)      ECT(0)         0
  2  10.9.0.1    not-ECT     -              0

67 packets in 412 ms, rtt 1.2 ms, 3 hops, place us/us1
)");
  EXPECT_EQ(cli({"ecn", "probe", "10.2.0.7", "--output", "json"}), kDegraded);
  EXPECT_EQ(agent.ecn_probe_request.port(), 443U);
  EXPECT_EQ(agent.ecn_probe_request.timeout_ms(), 0U);
  expect_json(probe);
}

TEST_F(Commands, EcnProbesExitStatusIsTheVerdict) {
  const std::pair<const char*, int> cases[] = {
      {"usable", kOk},          {"refused", kDegraded},     {"reflected", kDegraded},   {"syn-dropped", kDegraded},
      {"syn-reset", kDegraded}, {"ect-dropped", kDegraded}, {"ect-cleared", kDegraded}, {"ce-cleared", kDegraded},
      {"closed", kFailed},      {"silent", kFailed},        {"unreachable", kFailed},   {"unknown", kFailed}};
  for (const auto& [verdict, status] : cases) {
    agent.progress = stream([verdict = verdict](v1::Progress& last) { last.mutable_ecn_probed()->set_verdict(verdict); });
    EXPECT_EQ(cli({"ecn", "probe", "10.2.0.7"}), status) << verdict;
  }
}

TEST_F(Commands, EcnProbeTakesAddressesAndNames) {
  agent.progress = stream([](v1::Progress& last) { last.mutable_ecn_probed()->set_verdict("usable"); });
  const std::tuple<std::vector<std::string>, std::string, unsigned> cases[] = {
      {{"fd00::7"}, "fd00::7", 443},
      {{"[fd00::7]"}, "fd00::7", 443},
      {{"[fd00::7]:22", "--port", "80"}, "fd00::7", 22},
      {{"fd00::7", "-6"}, "fd00::7", 443},
      {{"10.0.0.7", "--ipv4"}, "10.0.0.7", 443},
      {{"localhost:80", "-4"}, "127.0.0.1", 80},
  };
  for (const auto& [words, address, port] : cases) {
    std::vector<std::string> all = {"ecn", "probe"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(cli(all), kOk) << words.front() << cli.err();
    EXPECT_EQ(agent.ecn_probe_request.destination(), address);
    EXPECT_EQ(agent.ecn_probe_request.port(), port);
  }
  agent.ecn_probe_request.Clear();
  const std::pair<std::vector<std::string>, std::string> refused[] = {
      {{"10.0.0.7", "-6"}, "'10.0.0.7' has no IPv6 address"},
      {{"10.0.0.7", "-4", "-6"}, "-4 and -6 exclude each other"},
      {{"10.0.0.7:0"}, "'0' is not a TCP port"},
      {{"10.0.0.7:65536"}, "'65536' is not a TCP port"},
      {{"[fd00::7"}, "'[fd00::7' is not [ADDRESS]:PORT"},
      {{"[fd00::7]22"}, "is not [ADDRESS]:PORT"},
  };
  for (const auto& [words, text] : refused) {
    std::vector<std::string> all = {"ecn", "probe"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(cli(all), kFailed) << words.front();
    EXPECT_THAT(cli.err(), HasSubstr(text));
    EXPECT_THAT(cli.err(), HasSubstr("fix: "));
  }
  EXPECT_EQ(agent.ecn_probe_request.destination(), "");  // none of them was asked for
  EXPECT_EQ(cli({"ecn", "probe", "10.0.0.7", "--dscp", "64"}), kUsage);
  EXPECT_EQ(cli({"ecn", "probe"}), kUsage);
}

TEST_F(Commands, EcnListIsOneLineAProbe) {
  *agent.ecn_probes.add_probes() = from_text<v1::EcnProbe>(kEcnProbe);
  EXPECT_EQ(cli({"ecn", "list"}), kOk);
  EXPECT_EQ(cli.out(), R"(DESTINATION  PORT  DSCP  PLACE   VERDICT      ECT(0)   ECT(1)  CE      DSCP KEPT     RTT     AGE
10.2.0.7       22     0  us/us1  ect-cleared  cleared  intact  intact  intact     1.2 ms  10 min
)");
  EXPECT_EQ(cli({"ecn", "list", "10.2.0.7"}), kOk);
  EXPECT_EQ(agent.ecn_probes_request.destination(), "10.2.0.7");
  EXPECT_THAT(cli.out(), HasSubstr("  2  10.9.0.1    not-ECT"));
  EXPECT_EQ(cli({"ecn", "list", "-o", "json"}), kOk);
  expect_json(agent.ecn_probes);
  agent.ecn_probes.Clear();
  EXPECT_EQ(cli({"ecn", "list"}), kOk);
  EXPECT_EQ(cli.out(), "no path was probed\n");
}

// ---- errors
// ------------------------------------------------------------------------------------------------------------------

TEST_F(Commands, TheAgentsErrorIsPrintedAsItWroteIt) {
  Error error;
  error.code = Code::kConflict;
  error.what = "cubic@1.0.0 is in use";
  error.remedy = "move its users first";
  error.context = {"while retiring", "down"};
  error.detail = "1 socket\n2 routes\n";
  agent.error = error;
  EXPECT_EQ(cli({"down"}), kConflict);
  EXPECT_EQ(cli.out(), "");
  EXPECT_EQ(cli.err(),
            "sluice: down: while retiring: cubic@1.0.0 is in use\n  fix: move its users first\n  detail: 2 lines, shown with "
            "--verbose\n");
  EXPECT_EQ(cli({"down", "--verbose"}), kConflict);
  EXPECT_THAT(cli.err(), HasSubstr("  detail:\n    1 socket\n    2 routes\n"));
  agent.error->code = Code::kDegraded;
  EXPECT_EQ(cli({"status"}), kDegraded);
  agent.error->code = Code::kInternal;
  EXPECT_EQ(cli({"status"}), kFailed);
}

TEST_F(Commands, ProblemsOfADocumentArePrintedAsCompilersDo) {
  Error error;
  error.code = Code::kInvalid;
  error.where = "policy.yaml:3:5";
  error.what = "unknown key `clas`";
  error.remedy = "did you mean `class`?";
  Error second;
  second.where = "policy.yaml:9:1";
  second.what = "no rule for locality unknown";
  error.also = {second};
  agent.error = error;
  EXPECT_EQ(cli({"apply", document()}), kFailed);
  EXPECT_EQ(cli.err(),
            "policy.yaml:3:5: error: unknown key `clas`\n  fix: did you mean `class`?\n"
            "policy.yaml:9:1: error: no rule for locality unknown\nsluice: 2 errors\n");
}

TEST_F(Commands, AnAgentThatDiesInTheMiddleIsToldWithWhatWasSeen) {
  agent.progress = {step(1, 3, "load cubic@1.1.0"), step(2, 3, "switch generation")};
  agent.stuck = true;
  cli.err_text.on_flush = [&](const std::string& text) {
    if (text.find("[2/3]") != std::string::npos) agent.die();
  };
  EXPECT_EQ(cli({"apply", document(), "--verbose"}), kFailed);
  EXPECT_EQ(cli.out(), "");
  EXPECT_THAT(
      cli.err(),
      HasSubstr("the agent went away in the middle of the command; last seen at step 2 of 3: switch generation; when it starts "
                "again it finishes or undoes what it began\n  fix: `sluice status` shows the state\n"));
}

TEST_F(Commands, AStreamWithoutAResultIsNoSuccess) {
  agent.progress = {step(1, 3, "load cubic@1.1.0")};
  EXPECT_EQ(cli({"rollback"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("the agent went away in the middle of the command; last seen at step 1 of 3"));
  EXPECT_EQ(cli.out(), "");
}

TEST_F(Commands, CtrlCEndsTheWaitAndSaysThatTheWorkGoesOn) {
  agent.progress = {step(1, 3, "load cubic@1.1.0")};
  agent.stuck = true;
  cli.err_text.on_flush = [&](const std::string& text) {
    if (text.find("[1/3]") != std::string::npos) cli.interrupt();
  };
  EXPECT_EQ(cli({"migrate", "--verbose"}), kFailed);
  EXPECT_EQ(cli.err(),
            "[1/3] load cubic@1.1.0\nsluice: interrupted: only the waiting has ended, the agent finishes what it began; last "
            "seen at step 1 of 3: "
            "load cubic@1.1.0\n  fix: `sluice status` shows the state\n");
}

TEST_F(Commands, SigintReachesTheProgramAsCtrlCDoes) {
  agent.stuck = true;
  const auto pid =
      start_detached({SLUICE_BUILD_DIR "/bin/sluice", "--socket", folder / "run/agent.sock", "migrate"}, folder / "output");
  ASSERT_TRUE(pid) << pid.error().message();
  agent.wait_for_call();
  ::kill(*pid, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(*pid, &status, 0), *pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kFailed) << status;
  EXPECT_THAT(read_file(folder / "output").value_or(""), StartsWith("sluice: interrupted: only the waiting has ended"));
}

TEST_F(Commands, ACallThatIsNeverAnsweredEndsAtTheDeadline) {
  agent.stuck = true;
  EXPECT_EQ(cli({"status", "--timeout", "0.2"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("the agent did not answer within 0.2 s\n  fix: give it longer with --timeout"));
  EXPECT_EQ(cli({"migrate", "--timeout", "0.2"}), kFailed);
  EXPECT_THAT(cli.err(),
              HasSubstr("the agent did not answer within 0.2 s, and goes on\n  fix: `sluice status` shows the state\n"));
}

TEST_F(Commands, ADocumentThatCannotBeReadReachesNoAgent) {
  EXPECT_EQ(cli({"apply", folder / "absent.yaml"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("the policy document: "));
  EXPECT_THAT(cli.err(), HasSubstr("absent.yaml"));
  EXPECT_EQ(cli({"up", folder / "absent.yaml"}), kFailed);
  EXPECT_EQ(agent.apply_request.source_name(), "");
}

TEST_F(Commands, OutputThatCannotBeWrittenIsAFailure) {
  agent.status = from_text<v1::StatusReply>(kStatus);
  cli.environment.out.setstate(std::ios::badbit);
  EXPECT_EQ(cli({"status"}), kFailed);
  EXPECT_EQ(cli.err(), "sluice: standard output cannot be written\n");
}

TEST_F(Commands, UpWithARunningAgentAppliesOnly) {
  agent.progress = stream([](v1::Progress& last) { last.mutable_applied()->set_revision(1); });
  EXPECT_EQ(cli({"up", document()}), kOk) << cli.err();  // the agent program does not exist, so nothing can have been started
  EXPECT_EQ(agent.apply_request.document(), "kind: Host\n");
}

// ---- without an agent
// --------------------------------------------------------------------------------------------------------

class NoAgent : public testing::Test {
 protected:
  TempFolder folder;
  Cli cli{folder};

  std::string file(const std::string& name, const std::string& text, mode_t mode = 0644) {
    EXPECT_TRUE(write_file_atomic(folder / name, text, mode));
    return folder / name;
  }
};

TEST_F(NoAgent, CommandsSayHowToStartIt) {
  EXPECT_EQ(cli({"status"}), kFailed);
  EXPECT_EQ(cli.err(),
            "sluice: " + (folder / "run/agent.sock") +
                ": the agent is not running\n  fix: start it with `sudo sluice up FILE` or `sudo systemctl start sluiced`\n");
  EXPECT_EQ(cli({"status", "--instance", "t1"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr(folder / "run/t1/agent.sock"));
  cli.variables["SLUICE_SOCKET"] = folder / "other.sock";
  EXPECT_EQ(cli({"status"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr(folder / "other.sock"));
  EXPECT_EQ(cli({"status", "--instance", "t1"}), kFailed);  // said on the command line: wins over the variable
  EXPECT_THAT(cli.err(), HasSubstr(folder / "run/t1/agent.sock"));
  {
    const UniqueFd dead = listen_on(folder / "dead.sock");
  }
  EXPECT_EQ(cli({"status", "--socket", folder / "dead.sock"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("the agent has ended: nobody answers on its socket"));
  EXPECT_EQ(cli({"status", "--socket", std::string(200, 'x')}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("a socket's path has 107 characters at most"));
  EXPECT_EQ(cli({"status", "--instance", "../x"}), kUsage);
}

TEST_F(NoAgent, AListenerThatNeverAcceptsIsBoundedByTheTimeout) {
  const UniqueFd listener = listen_on(folder / "run/agent.sock");
  EXPECT_EQ(cli({"status", "--timeout", "0.3"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("the agent did not answer within 0.3 s"));
}

TEST_F(NoAgent, AnAgentThatClosesTheConnectionSaysNoToUs) {
  const Acceptor closes(folder / "run/agent.sock", [](UniqueFd fd) { fd.reset(); });
  EXPECT_EQ(cli({"status", "--timeout", "20"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("the agent closed the connection\n  fix: use sudo, or join group sluice to read"));
}

TEST_F(NoAgent, WaitEndsWhenTheAgentComesUp) {
  FakeAgent agent;
  agent.status = from_text<v1::StatusReply>(kStatus);
  int asked = 0;
  cli.environment.interrupts = [&, nothing = std::make_shared<UniqueFd>(::eventfd(0, EFD_CLOEXEC))] {
    ++asked;  // asked for once, after the first probe has failed
    agent.serve(folder / "run/agent.sock");
    return nothing->get();
  };
  EXPECT_EQ(cli({"status", "--wait"}), kOk) << cli.err();
  EXPECT_EQ(asked, 1);
}

TEST_F(NoAgent, WaitEndsAtTheDeadlineAndOnCtrlC) {
  EXPECT_EQ(cli({"status", "--wait", "--timeout", "0.2"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("the agent is not running"));
  cli.interrupt();
  EXPECT_EQ(cli({"status", "--wait"}), kFailed);
}

TEST_F(NoAgent, DoctorAsksTheAgentsProgram) {
  cli.environment.agent_program = file(
      "sluiced",
      "#!/bin/sh\n[ \"$*\" = '--doctor --output json' ] || exit 9\n"
      "echo '{\"kernel\":\"6.1.0\",\"checks\":[{\"name\":\"btf\",\"verdict\":\"ok\",\"what\":\"present\"}],\"new\":1}'\nexit "
      "3\n",
      0755);
  EXPECT_EQ(cli({"doctor"}), kOk) << cli.err();
  EXPECT_EQ(cli.out(), "Linux 6.1.0\n\nCHECK  VERDICT  FOUND\nbtf    ok       present\n\neverything is as it should be\n");
  cli.environment.agent_program = file("broken", "#!/bin/sh\necho 'no libbpf' >&2\nexit 127\n", 0755);
  EXPECT_EQ(cli({"doctor", "--verbose"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("ended with status 127 and without a report"));
  EXPECT_THAT(cli.err(), HasSubstr("    no libbpf\n"));
  cli.environment.agent_program = folder / "absent";
  EXPECT_EQ(cli({"doctor"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("fix: install sluiced beside sluice, or into PATH"));
  cli.environment.agent_program = file("hangs", "#!/bin/sh\nexec cat /dev/zero >/dev/null\n", 0755);
  EXPECT_EQ(cli({"doctor", "--timeout", "0.2"}), kFailed);
}

// A program in the agent's place: it tells its pid and arguments, and lives until the test ends it.
class StandIn {
 public:
  explicit StandIn(const TempFolder& folder) {
    const std::string fifo = folder / "fifo";
    SLUICE_ASSERT(::mkfifo(fifo.c_str(), 0600) == 0);
    fifo_ = UniqueFd(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
    program = folder / "sluiced";
    SLUICE_ASSERT(
        write_file_atomic(program, "#!/bin/sh\necho $$ \"$@\" >'" + fifo + "'\nexec sleep infinity\n", 0755).has_value());
  }
  ~StandIn() {
    if (pid_ == 0) told();
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
  }
  // Waits for its line and returns the arguments.
  std::string told() {
    char line[1024];
    const ssize_t got = ::read(fifo_.get(), line, sizeof(line));
    SLUICE_ASSERT(got > 0);
    std::istringstream words(std::string(line, static_cast<std::size_t>(got)));
    std::string arguments;
    words >> pid_ >> std::ws;
    std::getline(words, arguments);
    return arguments;
  }

  std::string program;

 private:
  UniqueFd fifo_;
  pid_t pid_ = 0;
};

TEST_F(NoAgent, UpStartsTheAgentAndAppliesOnceItAnswers) {
  StandIn program(folder);
  cli.environment.agent_program = program.program;
  ASSERT_EQ(::mkdir((folder / "run/t1").c_str(), 0700), 0);
  std::string arguments;
  FakeAgent agent;
  agent.progress = stream([](v1::Progress& last) { last.mutable_applied()->set_revision(1); });
  std::thread host([&] {
    arguments = program.told();
    agent.serve(folder / "run/t1/agent.sock");
  });
  EXPECT_EQ(cli({"--instance", "t1", "up", file("p.yaml", "kind: Host\n"), "--bundle-path", "/a:/b"}), kOk) << cli.err();
  host.join();
  EXPECT_EQ(arguments, "--instance t1 --bundle-path /a --bundle-path /b");
  EXPECT_EQ(agent.apply_request.document(), "kind: Host\n");
  EXPECT_EQ(read_file(folder / "state/t1/sluiced.log").value_or("absent"), "");
}

TEST_F(NoAgent, UpShowsWhyTheAgentDidNotStart) {
  cli.environment.agent_program = file("sluiced", "#!/bin/sh\necho 'no BTF in this kernel' >&2\nexit 1\n", 0755);
  const std::string policy = file("p.yaml", "kind: Host\n");
  EXPECT_EQ(cli({"up", policy, "--verbose"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("sluice: " + (folder / "state/sluiced.log") + ": the agent ended while it started\n"));
  EXPECT_THAT(cli.err(), HasSubstr("    no BTF in this kernel\n"));
  cli.environment.agent_program = folder / "absent";
  EXPECT_EQ(cli({"up", policy}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("fix: install sluiced beside sluice, or into PATH"));
}

TEST_F(NoAgent, UpEndsAtTheDeadlineWhenTheAgentNeverAnswers) {
  const StandIn program(folder);
  cli.environment.agent_program = program.program;
  EXPECT_EQ(cli({"up", file("p.yaml", "kind: Host\n"), "--timeout", "0.3"}), kFailed);
  EXPECT_THAT(
      cli.err(),
      HasSubstr("the agent did not answer within 0.3 s; it goes on starting\n  fix: `sluice status --wait` waits for it"));
}

TEST_F(NoAgent, LocalCommandsNeedNone) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"--help"},
                                                                                     {"status", "--help"},
                                                                                     {"cca", "--help"},
                                                                                     {"explain", "-h"},
                                                                                     {"--version"},
                                                                                     {"version"},
                                                                                     {"completion", "zsh"},
                                                                                     {"--print-man"},
                                                                                     {"--print-reference"}}) {
    EXPECT_EQ(cli(words), kOk) << words.front();
    EXPECT_NE(cli.out(), "");
    EXPECT_EQ(cli.err(), "");
  }
  EXPECT_EQ(cli({"version", "-o", "json"}), kOk);
  EXPECT_THAT(cli.out(), HasSubstr("\"abi\": 1"));
  EXPECT_EQ(cli({}), kUsage);
  EXPECT_EQ(cli({"cca"}), kUsage);
  EXPECT_EQ(cli({"aply"}), kUsage);
  EXPECT_EQ(cli.err(), "sluice: unknown command 'aply'; did you mean 'apply'?\n  fix: run `sluice --help`\n");
}

const char* const kManifest = R"(name: aimd
version: 1.2.0
class: cca
summary: An example
license: GPL-2.0-only OR BSD-2-Clause
objects: [aimd.o]
kernel: {min: "6.12", features: []}
hooks: [init, ssthresh, cong_avoid, undo_cwnd]
signals: {ecn: ignores, delay: false, loss: true}
parameters:
  - {name: step, type: u32, unit: segments, min: 1, max: 100, default: 4, when: live, summary: increase per RTT}
)";

TEST_F(NoAgent, BundlesAreListedShownAndLinted) {
  const std::string bundle = folder / "bundles/aimd/1.2.0";
  ASSERT_TRUE(make_dirs(bundle));
  ASSERT_TRUE(write_file_atomic(bundle + "/bundle.yaml", kManifest));
  ASSERT_TRUE(write_file_atomic(bundle + "/aimd.o", "not an object"));
  cli.environment.bundle_path = {folder / "absent", folder / "bundles"};
  EXPECT_EQ(cli({"bundle", "list"}), kOk) << cli.err();
  EXPECT_EQ(cli.out(),
            "NAME  VERSION  CLASS  KERNEL  ECN      SUMMARY     FOLDER\naimd  1.2.0    cca      6.12  ignores  An example  " +
                bundle + "\n");
  for (const std::string& name : {std::string("aimd"), std::string("aimd@1.2.0"), bundle}) {
    EXPECT_EQ(cli({"bundle", "show", name}), kOk) << cli.err();
    EXPECT_THAT(cli.out(), StartsWith("aimd@1.2.0 (cca): An example\n"));
    EXPECT_THAT(cli.out(), HasSubstr("kernel name   aimd.1.2.0\n"));
    EXPECT_THAT(cli.out(), HasSubstr("step"));
  }
  EXPECT_EQ(cli({"bundle", "show", "aimd", "--output", "yaml"}), kOk);
  const YAML::Node shown = YAML::Load(cli.out());
  EXPECT_EQ(shown["parameters"][0]["max"].as<int>(), 100);
  EXPECT_EQ(shown["signals"]["ecn"].as<std::string>(), "ignores");

  EXPECT_EQ(cli({"bundle", "show", "aimdd"}), kFailed);
  EXPECT_THAT(cli.err(), HasSubstr("did you mean 'aimd'?"));
  EXPECT_EQ(cli({"bundle", "show", "aimd@2.0.0"}), kFailed);

  EXPECT_EQ(cli({"bundle", "lint", bundle}), kFailed);
  EXPECT_THAT(cli.out(), HasSubstr("aimd.o"));
  EXPECT_THAT(cli.out(), HasSubstr("error:"));
  EXPECT_THAT(cli.err(), HasSubstr("error"));
  EXPECT_EQ(cli({"bundle", "lint", bundle, "-o", "json"}), kFailed);
  EXPECT_EQ(YAML::Load(cli.out())["findings"][0]["severity"].as<std::string>(), "error");
  EXPECT_EQ(cli({"bundle", "lint", folder / "absent"}), kFailed);

  const std::string archive = folder / "aimd.tar.zst", into = folder / "installed";
  EXPECT_EQ(cli({"bundle", "pack", bundle, "--file", archive}), kOk) << cli.err();
  EXPECT_EQ(cli({"bundle", "unpack", archive, "--into", into}), kOk) << cli.err();
  EXPECT_EQ(cli({"bundle", "show", into + "/aimd/1.2.0"}), kOk) << cli.err();
  EXPECT_EQ(cli({"bundle", "unpack", archive, "--into", into}), kOk) << "the same content again is no conflict";
  ASSERT_TRUE(write_file_atomic(bundle + "/aimd.o", "another object"));
  EXPECT_EQ(cli({"bundle", "pack", bundle, "--file", archive}), kOk) << cli.err();
  EXPECT_EQ(cli({"bundle", "unpack", archive, "--into", into}), kConflict) << "a version never changes";

  ASSERT_TRUE(write_file_atomic(bundle + "/bundle.yaml", "name: aimd\nversoin: 1\n"));
  EXPECT_EQ(cli({"bundle", "list"}), kDegraded);
  EXPECT_THAT(cli.err(), HasSubstr("bundle.yaml:"));
}

}  // namespace
}  // namespace sluice::cli
