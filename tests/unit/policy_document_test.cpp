// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Policy documents: what is read, and what is refused with place and remedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "policy/document.h"

namespace sluice::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Line numbers in this file's expectations count from the first line of this text.
constexpr std::string_view kGood = R"(apiVersion: sluice/v1
kind: Host
place: {region: eu, datacenter: eu1, rack: r1}
topology:
  - {prefix: 10.1.0.0/16, region: eu, datacenter: eu1, rack: r7}
  - {prefix: 10.2.0.0/16, region: eu, datacenter: eu2}
  - {prefix: "2001:db8::/32", region: us}
  - {prefix: 0.0.0.0/0, external: true}
bundles:
  - name: cubic
    version: 1.0.0
    parameters: {beta: 600}
    overrides:
      - match: {service: web, place: eu/eu2}
        parameters: {beta: 700}
  - {name: ecncc, version: 2.0.0}
services:
  - {name: web, sources: [10.1.2.0/24], cgroups: [/system.slice/web.service], ports: [80, 443]}
rules:
  - {name: local, match: {locality: [intra_rack, intra_dc, intra_region]}, use: "kernel:bbr"}
  - {match: {locality: cross_region, place: us/*, service: web}, use: "ecncc@2.0.0", init_cwnd: 20, application: refuse}
  - {match: {locality: [unknown, external, cross_region]}, use: "cubic@1.0.0"}
transitional: cubic@1.0.0
sysctls: {net.ipv4.tcp_ecn: 1}
options: {self_migrate: false}
)";

std::string with(std::string text, std::string_view old, std::string_view fresh) {
  auto at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), fresh);
}

bundle::Manifest manifest(std::string_view name, std::string_view version, std::string_view rest) {
  auto out = bundle::parse_manifest(
      fmt::format("name: {}\nversion: {}\nclass: cca\nsummary: x\nlicense: GPL\nobjects: [x.o]\nkernel: {{min: \"6.6\"}}\n"
                  "hooks: [ssthresh]\n{}",
                  name, version, rest),
      "bundle.yaml");
  EXPECT_TRUE(out) << out.error().message();
  return *out;
}

class Bundles {
 public:
  Bundles() {
    list_.push_back(
        manifest("cubic", "1.0.0",
                 "parameters: [{name: beta, type: u32, unit: permille, min: 100, max: 1000, default: 700, when: live, "
                 "summary: b}, {name: fast_convergence, type: bool, default: true, when: load, summary: f}]\n"
                 "transitional: true\n"));
    list_.push_back(manifest("cubic", "1.1.0", "transitional: true\n"));
    list_.push_back(manifest("ecncc", "2.0.0", "signals: {ecn: requires}\n"));
    list_.push_back(
        *bundle::parse_manifest("name: pipeline\nversion: 1.0.0\nclass: policy\nsummary: x\nlicense: GPL\nobjects: [x.o]\n"
                                "kernel: {min: \"6.6\"}\n",
                                "bundle.yaml"));
  }
  Manifests get() const {
    Manifests out;
    for (const bundle::Manifest& each : list_) out.push_back(&each);
    return out;
  }

 private:
  std::vector<bundle::Manifest> list_;
};

TEST(Document, ReadsEveryField) {
  auto document = parse_document(kGood, "policy.yaml");
  ASSERT_TRUE(document) << document.error().message();
  EXPECT_EQ(document->text, kGood);
  EXPECT_EQ(document->place.text(), "eu/eu1/r1");
  ASSERT_EQ(document->topology.size(), 4u);
  EXPECT_EQ(document->topology[0].prefix.text(), "10.1.0.0/16");
  EXPECT_EQ(document->topology[0].prefix.length, 112u);
  EXPECT_TRUE(document->topology[3].external);
  EXPECT_EQ(document->bundles[0].overrides[0].match.text(), "place eu/eu2, service web");
  EXPECT_THAT(document->services[0].ports, ElementsAre(80, 443));
  EXPECT_EQ(document->rules[1].use.text(), "ecncc@2.0.0");
  EXPECT_EQ(document->rules[1].init_cwnd, 20);
  EXPECT_EQ(document->rules[1].application, Application::kRefuse);
  EXPECT_EQ(document->rules[0].application, Application::kOverride);
  EXPECT_EQ(document->rules[0].label(0), "rule 1 (local)");
  EXPECT_EQ(document->transitional->text(), "cubic@1.0.0");
  EXPECT_EQ(document->sysctls.at("net.ipv4.tcp_ecn"), "1");
  EXPECT_FALSE(document->options.self_migrate);
  Bundles bundles;
  auto status = check(*document, bundles.get());
  EXPECT_TRUE(status) << status.error().message();
}

struct Bad {
  std::string_view name, old, fresh, where, what, remedy;
};
void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.name; }

// The document is right except for one thing; parse_document() or check() must say which, where, and what to do.
class BadDocuments : public ::testing::TestWithParam<Bad> {};
TEST_P(BadDocuments, NamePlaceAndRemedy) {
  const Bad& bad = GetParam();
  Bundles bundles;
  std::string text = with(std::string(kGood), bad.old, bad.fresh);
  yaml::Problems problems;
  if (auto document = parse_document(text, "p.yaml", &problems)) {
    ASSERT_FALSE(check(*document, bundles.get(), &problems)) << "accepted";
  }
  ASSERT_EQ(problems.list().size(), 1u) << problems.to_error().message();
  EXPECT_EQ(problems.list()[0].where, bad.where);
  EXPECT_THAT(problems.list()[0].what, HasSubstr(std::string(bad.what)));
  EXPECT_THAT(problems.list()[0].remedy, HasSubstr(std::string(bad.remedy)));
}
INSTANTIATE_TEST_SUITE_P(
    All, BadDocuments,
    ::testing::Values(
        Bad{"UnknownKey", "topology:", "topolgy:", "p.yaml:4:1",
            "unknown key 'topolgy' in the policy (did you mean 'topology'?)", "known keys are"},
        Bad{"UnknownRuleKey", "init_cwnd: 20", "initcwnd: 20", "p.yaml:21:86", "(did you mean 'init_cwnd'?)",
            "name, match, use, init_cwnd, application"},
        Bad{"ApiVersion", "sluice/v1", "sluice/v2", "p.yaml:1:13", "'sluice/v2'", "sluice/v1"},
        Bad{"Kind", "kind: Host", "kind: Hots", "p.yaml:2:7", "(did you mean 'Host'?)", "Host"},
        Bad{"UnknownApplicationWord", "application: refuse", "application: forbid", "p.yaml:21:114", "'application'",
            "override, respect, refuse"},
        Bad{"WrongType", "init_cwnd: 20", "init_cwnd: many", "p.yaml:21:97", "must be a number, not 'many'", "from 1 to 1000"},
        Bad{"WrongTypeList", "ports: [80, 443]", "ports: 80", "p.yaml:18:86", "'ports' must be a list, not a single value",
            "[a, b]"},
        Bad{"WrongTypeBool", "self_migrate: false", "self_migrate: \"no\"", "p.yaml:25:25", "must be true or false, not 'no'",
            "true or false"},
        Bad{"QuotedNumber", "init_cwnd: 20", "init_cwnd: \"20\"", "p.yaml:21:97", "must be a number, not quoted text",
            "from 1 to 1000"},
        Bad{"PortRange", "443]", "70000]", "p.yaml:18:91", "out of the range 1..65535", "1 to 65535"},
        Bad{"HostBits", "10.1.0.0/16", "10.1.2.0/16", "p.yaml:5:14", "prefix 10.1.2.0/16 has host bits set",
            "write the network 10.1.0.0/16, or the host 10.1.2.0/32"},
        Bad{"HostBits6", "2001:db8::/32", "2001:db8::1/32", "p.yaml:7:14", "has host bits set",
            "2001:db8::/32, or the host 2001:db8::1/128"},
        Bad{"SourceHostBits", "10.1.2.0/24", "10.1.2.1/24", "p.yaml:18:27", "host bits", "10.1.2.0/24"},
        Bad{"NoPrefix", "10.1.0.0/16", "10.1/16", "p.yaml:5:14", "is not an address prefix", "such as 10.1.0.0/16"},
        Bad{"PrefixLength", "10.1.0.0/16", "10.1.0.0/33", "p.yaml:5:14", "a number from 0 to 32", "ADDRESS/LENGTH"},
        Bad{"DuplicatePrefix", "10.2.0.0/16", "10.1.0.0/16", "p.yaml:6:14", "10.1.0.0/16 is listed twice, first in line 5",
            "keep one"},
        Bad{"DuplicateMapped", "10.2.0.0/16", "\"::ffff:10.1.0.0/112\"", "p.yaml:6:14", "10.1.0.0/16 is listed twice",
            "keep one"},
        Bad{"Overlap", "10.2.0.0/16, region: eu, datacenter: eu2", "10.1.3.0/24, region: eu, datacenter: eu2", "p.yaml:6:14",
            "10.1.3.0/24 (eu/eu2) lies within 10.1.0.0/16 (eu/eu1/r7, line 5)", "place it below eu/eu1/r7"},
        Bad{"OverlapExternal", "10.2.0.0/16, region: eu, datacenter: eu2", "10.1.3.0/24, external: true", "p.yaml:6:14",
            "10.1.3.0/24 (external) lies within 10.1.0.0/16", "split the enclosing prefix"},
        Bad{"RackAlone", "datacenter: eu2", "rack: eu2", "p.yaml:6:45", "a rack without its datacenter", "add 'datacenter"},
        Bad{"ExternalPlace", "external: true", "external: true, region: x", "p.yaml:8:49", "an external prefix has no region",
            "drop 'region' or 'external'"},
        Bad{"NoRegion", "place: {region: eu, datacenter", "place: {datacenter", "p.yaml:3:8", "has no 'region'", "add 'region"},
        Bad{"DuplicateRule", "  - {match: {locality: cross_region, place: us/*, service: web}",
            "  - {match: {locality: [intra_dc, intra_rack, intra_region]}", "p.yaml:21:5",
            "rule 2 is a duplicate of rule 1 (local) in line 20", "keep one of them"},
        Bad{"UnreachableRule", "locality: cross_region, place: us/*, service: web", "locality: intra_dc, service: web",
            "p.yaml:21:5",
            "rule 2 is unreachable: what it matches (locality intra_dc, service web) is taken by rule 1 (local) in line 20",
            "move it before them"},
        Bad{"NoUnknown", "[unknown, external, cross_region]", "[external, cross_region]", "p.yaml:20:3",
            "no rule for locality unknown and connections of no service", "{match: {locality: unknown}, use: kernel:cubic}"},
        Bad{"NoExternal", "[unknown, external, cross_region]", "[unknown, cross_region]", "p.yaml:20:3",
            "no rule for locality external", "locality: external"},
        Bad{"NoPlace", "[unknown, external, cross_region]", "[unknown, external]", "p.yaml:20:3",
            "no rule for locality cross_region (for example place us) and connections of no service", "locality: cross_region"},
        Bad{"RuleNameTwice", "{match: {locality: cross_region", "{name: local, match: {locality: cross_region", "p.yaml:21:12",
            "two rules are named 'local'", "rename"},
        Bad{"UnknownService", "service: web}, use", "service: wep}, use", "p.yaml:21:60",
            "unknown service 'wep' (did you mean 'web'?)", "define it in 'services'"},
        Bad{"UnknownLocality", "[unknown,", "[unknow,", "p.yaml:22:25", "(did you mean 'unknown'?)", "intra_rack"},
        Bad{"PlacePattern", "us/*", "us//r", "p.yaml:21:45", "'us//r' is not a place", "REGION/DATACENTER"},
        Bad{"ServiceEmpty", "{name: web, sources: [10.1.2.0/24], cgroups: [/system.slice/web.service], ports: [80, 443]}",
            "{name: web}", "p.yaml:18:5", "nothing can belong to it", "add 'sources', 'cgroups' or 'ports'"},
        Bad{"CgroupPath", "/system.slice/web.service", "/system.slice/../x", "p.yaml:18:51", "is not a cgroup path",
            "/system.slice/web.service"},
        Bad{"NativeName", "kernel:bbr", "kernel:bbr+", "p.yaml:20:81", "does not name a native CCA", "kernel:NAME"},
        Bad{"NativeNameLong", "kernel:bbr", "kernel:abcdefghijklmnop", "p.yaml:20:81", "does not name a native CCA",
            "1 to 15 characters"},
        Bad{"TargetWithoutVersion", "use: \"ecncc@2.0.0\"", "use: ecncc", "p.yaml:21:71",
            "does not name a bundle and a version", "NAME@VERSION"},
        Bad{"TargetNotListed", "use: \"ecncc@2.0.0\"", "use: \"ecncc@2.0.1\"", "p.yaml:21:71",
            "ecncc@2.0.1 is not listed in 'bundles' (did you mean 'ecncc@2.0.0'?)", "add '- {name: ecncc, version: 2.0.1}'"},
        Bad{"BundleTwice", "{name: ecncc, version: 2.0.0}", "{name: cubic, version: 1.0.0}\n  - {name: ecncc, version: 2.0.0}",
            "p.yaml:16:5", "bundle cubic@1.0.0 is listed twice", "keep one"},
        Bad{"UnknownBundle", "  - {name: ecncc, version: 2.0.0}",
            "  - {name: ecncc, version: 2.0.0}\n  - {name: cubik, version: 1.0.0}", "p.yaml:17:12",
            "unknown bundle 'cubik' (did you mean 'cubic'?)", "sluice bundle list"},
        Bad{"UnknownVersion", "  - {name: ecncc, version: 2.0.0}",
            "  - {name: ecncc, version: 2.0.0}\n  - {name: ecncc, version: 9.0.0}", "p.yaml:17:12",
            "bundle ecncc has no version 9.0.0", "installed are: 2.0.0"},
        Bad{"BundleClass", "  - {name: ecncc, version: 2.0.0}",
            "  - {name: ecncc, version: 2.0.0}\n  - {name: pipeline, version: 1.0.0}", "p.yaml:17:12",
            "is of class policy, not cca", "congestion control"},
        Bad{"UnknownParameter", "{beta: 600}", "{betta: 600}", "p.yaml:12:18",
            "bundle cubic@1.0.0 has no parameter 'betta' (did you mean 'beta'?)", "its parameters are: beta, fast_convergence"},
        Bad{"ParameterRange", "{beta: 600}", "{beta: 6000}", "p.yaml:12:24", "'beta' is 6000, out of the range 100..1000",
            "100..1000 permille, its default 700"},
        Bad{"ParameterType", "{beta: 600}", "{fast_convergence: 2}", "p.yaml:12:36",
            "'fast_convergence' must be true or false, not '2'", "its default true"},
        Bad{"OverrideRange", "{beta: 700}", "{beta: 1}", "p.yaml:15:28", "out of the range", "100..1000"},
        Bad{"OverrideLoadTime", "{beta: 700}", "{fast_convergence: false}", "p.yaml:15:22", "is fixed when it is loaded",
            "the bundle's own 'parameters'"},
        Bad{"TransitionalNeedsEcn", "transitional: cubic@1.0.0", "transitional: ecncc@2.0.0", "p.yaml:23:15",
            "ecncc@2.0.0 requires ECN and cannot be transitional", "with and without ECN"},
        Bad{"TransitionalNativeEcn", "transitional: cubic@1.0.0", "transitional: kernel:dctcp", "p.yaml:23:15", "requires ECN",
            "with and without"},
        Bad{"SysctlUnknown", "net.ipv4.tcp_ecn:", "net.ipv4.tcp_enc:", "p.yaml:24:11", "(did you mean 'net.ipv4.tcp_ecn'?)",
            "known keys are"},
        Bad{"SysctlRange", "tcp_ecn: 1", "tcp_ecn: 7", "p.yaml:24:29", "out of the range 0..2", "0 to 2"},
        Bad{"KeyTwice", "kind: Host", "kind: Host\nkind: Host", "p.yaml:3:1", "key 'kind' is given twice", "keep one"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(Document, MissingTransitionalForACcaThatNeedsEcn) {
  std::string text(kGood);
  text = with(text, "transitional: cubic@1.0.0\n", "");
  text = with(text,
              "  - name: cubic\n    version: 1.0.0\n    parameters: {beta: 600}\n    overrides:\n      - match: {service: web, "
              "place: eu/eu2}\n        parameters: {beta: 700}\n",
              "");
  text = with(text, "use: \"cubic@1.0.0\"", "use: kernel:cubic");
  auto document = parse_document(text, "p.yaml");
  ASSERT_TRUE(document) << document.error().message();
  Bundles bundles;
  auto status = check(*document, bundles.get());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().where, "p.yaml:15:71");
  EXPECT_THAT(status.error().what, HasSubstr("rule 2 uses ecncc@2.0.0, which requires ECN, and there is no transitional CCA"));
  EXPECT_THAT(status.error().remedy, HasSubstr("transitional: kernel:cubic"));
}

TEST(Document, SeveralTransitionalBundlesMustBeToldApart) {
  std::string text = with(with(std::string(kGood), "transitional: cubic@1.0.0\n", ""), "  - {name: ecncc, version: 2.0.0}\n",
                          "  - {name: ecncc, version: 2.0.0}\n  - {name: cubic, version: 1.1.0}\n");
  Bundles bundles;
  auto status = check(*parse_document(text, "p.yaml"), bundles.get());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().where, "p.yaml:10:11");
  EXPECT_THAT(status.error().what, HasSubstr("cubic@1.0.0, cubic@1.1.0"));
  EXPECT_THAT(status.error().remedy, HasSubstr("transitional: cubic@1.0.0"));
}

TEST(Document, SeveralProblemsAreReportedTogether) {
  std::string text = with(with(std::string(kGood), "10.1.0.0/16", "10.1.0.1/16"), "kind: Host", "kind: Hots");
  auto document = parse_document(text, "p.yaml");
  ASSERT_FALSE(document);
  EXPECT_EQ(document.error().where, "p.yaml:2:7");
  ASSERT_EQ(document.error().also.size(), 1u);
  EXPECT_EQ(document.error().also[0].where, "p.yaml:5:14");
}

TEST(Document, AWildcardTakesWhatLaterPatternsName) {
  std::string rules =
      "rules:\n  - {match: {place: \"*\"}, use: kernel:bbr}\n  - {match: {place: us/dc/r}, use: kernel:reno}\n  - {use: "
      "kernel:cubic}\n";
  auto document = parse_document("apiVersion: sluice/v1\nkind: Host\nplace: {region: eu}\n" + rules, "p.yaml");
  ASSERT_FALSE(document);
  EXPECT_EQ(document.error().where, "p.yaml:6:5");
  EXPECT_THAT(document.error().what, HasSubstr("rule 2 is unreachable"));
}

TEST(Document, RulesForPlacesNotYetInTheTopologyAreFine) {
  auto document = parse_document(
      "apiVersion: sluice/v1\nkind: Host\nplace: {region: eu}\nrules:\n  - {match: {place: us/dc/r}, use: kernel:bbr}\n"
      "  - {match: {place: us/dc}, use: kernel:reno}\n  - {match: {place: us}, use: kernel:bbr}\n  - {match: {locality: "
      "intra_rack}, use: kernel:bbr}\n"
      "  - {use: kernel:cubic}\n",
      "p.yaml");
  EXPECT_TRUE(document) << document.error().message();
}

TEST(Prefix, NotationRoundTrips) {
  for (const char* text : {"10.0.0.0/8", "0.0.0.0/0", "192.168.1.1/32", "2001:db8::/32", "::/0", "fe80::1/128"})
    EXPECT_EQ(parse_prefix(text)->text(), text);
  EXPECT_EQ(parse_prefix("10.0.0.1")->text(), "10.0.0.1/32");
  EXPECT_EQ(parse_prefix("::ffff:10.0.0.0/104")->text(), "10.0.0.0/8");
  EXPECT_FALSE(parse_prefix("::/0")->contains(*parse_prefix("10.0.0.0/8")));
  EXPECT_TRUE(parse_prefix("0.0.0.0/0")->contains(*parse_prefix("10.0.0.0/8")));
  EXPECT_EQ(parse_prefix("10.255.255.255/9")->network().text(), "10.128.0.0/9");
  for (const char* bad : {"", "/", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/8/8", "10.0.0", "::/129", "x/8"})
    EXPECT_FALSE(parse_prefix(bad)) << bad;
}

TEST(Locality, FollowsFromBothPlaces) {
  Place own{"eu", "eu1", "r1"};
  EXPECT_EQ(locality_of(own, {}, false), SL_LOCALITY_UNKNOWN);
  EXPECT_EQ(locality_of(own, {}, true), SL_LOCALITY_EXTERNAL);
  EXPECT_EQ(locality_of(own, {"us", "eu1", "r1"}, false), SL_LOCALITY_CROSS_REGION);
  EXPECT_EQ(locality_of(own, {"eu", "", ""}, false), SL_LOCALITY_INTRA_REGION);
  EXPECT_EQ(locality_of(own, {"eu", "eu2", "r1"}, false), SL_LOCALITY_INTRA_REGION);
  EXPECT_EQ(locality_of(own, {"eu", "eu1", "r2"}, false), SL_LOCALITY_INTRA_DC);
  EXPECT_EQ(locality_of(own, {"eu", "eu1", ""}, false), SL_LOCALITY_INTRA_DC);
  EXPECT_EQ(locality_of(own, own, false), SL_LOCALITY_INTRA_RACK);
  EXPECT_EQ(locality_of({"eu", "", ""}, {"eu", "", ""}, false), SL_LOCALITY_INTRA_REGION);
}

TEST(Json, ReadsBackToTheSameDocument) {
  Document document = *parse_document(kGood, "policy.yaml");
  std::string json = to_json(document);
  auto again = parse_document(json, "policy.json");
  ASSERT_TRUE(again) << again.error().message() << json;
  EXPECT_EQ(to_json(*again), json);
  EXPECT_TRUE(diff(&document, *again).empty());
}

std::vector<std::string> texts(const std::vector<Change>& changes) {
  std::vector<std::string> out;
  for (const Change& change : changes) out.push_back(change.text());
  return out;
}

TEST(Diff, SaysWhatChangesInTheTermsOfTheDocument) {
  Document before = *parse_document(kGood, "a");
  EXPECT_TRUE(diff(&before, before).empty());
  std::string text =
      with(std::string(kGood), "prefix: 10.2.0.0/16, region: eu, datacenter: eu2", "prefix: 10.2.0.0/16, region: us");
  text = with(text, "use: \"kernel:bbr\"", "use: \"kernel:reno\"");
  text = with(text, "{name: ecncc, version: 2.0.0}", "{name: ecncc, version: 2.1.0}");
  text = with(text, "use: \"ecncc@2.0.0\"", "use: \"ecncc@2.1.0\"");
  text = with(text, "{beta: 600}", "{beta: 650}");
  text = with(text, "sysctls: {net.ipv4.tcp_ecn: 1}\n", "");
  text = with(text, "self_migrate: false", "self_migrate: true");
  Document after = *parse_document(text, "b");
  EXPECT_THAT(
      texts(diff(&before, after)),
      ElementsAre("~ place of 10.2.0.0/16: eu/eu2 -> us", "- bundle ecncc@2.0.0: default parameters",
                  HasSubstr("~ bundle cubic@1.0.0: {\"parameters\":{\"beta\":600}"), "+ bundle ecncc@2.1.0: default parameters",
                  "~ rule local: kernel:bbr for locality intra_region|intra_dc|intra_rack -> kernel:reno for locality "
                  "intra_region|intra_dc|intra_rack",
                  "~ rule for locality cross_region, place us/*, service web: ecncc@2.0.0, init_cwnd 20, application refuse -> "
                  "ecncc@2.1.0, init_cwnd 20, application refuse",
                  "- sysctl net.ipv4.tcp_ecn: 1", "~ option self_migrate: false -> true"));
  EXPECT_EQ(diff(nullptr, before).size(), 14u);
}

TEST(Diff, SeesAChangedOrder) {
  std::string head = "apiVersion: sluice/v1\nkind: Host\nplace: {region: eu}\nrules:\n";
  std::string a = "  - {match: {locality: external}, use: kernel:bbr}\n",
              b = "  - {match: {locality: unknown}, use: kernel:reno}\n", c = "  - {use: kernel:cubic}\n";
  Document before = *parse_document(head + a + b + c, "a");
  Document after = *parse_document(head + b + a + c, "b");
  EXPECT_THAT(texts(diff(&before, after)),
              ElementsAre(HasSubstr("~ order of rules: for locality external; for locality unknown")));
}

// schemas/policy.schema.json says what the parser says.
TEST(Schema, AgreesWithTheParser) {
  auto schema = nlohmann::json::parse(*read_file(SLUICE_SOURCE_DIR "/schemas/policy.schema.json"));
  auto keys = [](const nlohmann::json& object) {
    EXPECT_EQ(object.at("additionalProperties"), false);
    std::set<std::string> out;
    for (const auto& [key, value] : object.at("properties").items()) out.insert(key);
    return out;
  };
  auto set = [](const auto& words) { return std::set<std::string>(words.begin(), words.end()); };
  const auto& top = schema.at("properties");
  EXPECT_EQ(keys(schema), set(kDocumentKeys));
  EXPECT_EQ(keys(top.at("place")), set(kPlaceKeys));
  EXPECT_EQ(keys(top.at("topology").at("items")), set(kTopologyKeys));
  EXPECT_EQ(keys(top.at("bundles").at("items")), set(kBundleKeys));
  EXPECT_EQ(keys(top.at("bundles").at("items").at("properties").at("overrides").at("items")), set(kOverrideKeys));
  EXPECT_EQ(keys(top.at("services").at("items")), set(kServiceKeys));
  EXPECT_EQ(keys(top.at("rules").at("items")), set(kRuleKeys));
  EXPECT_EQ(top.at("rules").at("items").at("properties").at("application").at("enum").get<std::set<std::string>>(),
            set(kApplicationWords));
  EXPECT_EQ(keys(top.at("options")), set(kOptionKeys));
  const auto& match = schema.at("$defs").at("match");
  EXPECT_EQ(keys(match), set(kMatchKeys));
  EXPECT_EQ(match.at("properties").at("locality").at("oneOf")[0].at("enum").get<std::set<std::string>>(), set(kLocalityWords));
  for (const SysctlRange& sysctl : kSysctls) {
    const auto& property = top.at("sysctls").at("properties").at(std::string(sysctl.name));
    EXPECT_EQ(property.at("minimum"), sysctl.min);
    EXPECT_EQ(property.at("maximum"), sysctl.max);
  }
  EXPECT_EQ(top.at("sysctls").at("properties").size(), kSysctls.size());
}

}  // namespace
}  // namespace sluice::policy
