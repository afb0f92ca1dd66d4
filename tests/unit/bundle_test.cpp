// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Bundles: manifests and their refusals, versions, kernel names, catalogue, archives, lint, and the schema's consistency.
#include <archive.h>
#include <archive_entry.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "bundle/catalog.h"
#include "bundle/known_bugs.h"
#include "bundle/lint.h"
#include "bundle/manifest.h"
#include "bundle/object.h"
#include "bundle/sha256.h"

namespace sluice::bundle {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;

constexpr std::string_view kGood = R"(name: lint
version: 1.0.0
class: cca
summary: a CCA for tests
license: Dual BSD/GPL
objects: [lint.o]
kernel: {min: "6.6", features: [struct_ops, struct_ops-link]}
hooks: [ssthresh, cong_avoid, undo_cwnd]
signals: {ecn: tolerates, delay: false, loss: true}
parameters:
  - {name: beta, type: u32, unit: permille, min: 100, max: 1000, default: 700, when: live, summary: what is left}
  - {name: window_max, type: u64, unit: segments, default: 100, when: load, summary: most}
transitions:
  - {from: "*"}
  - {to: "*"}
transitional: true
state: {tag: 1}
)";

std::string with(std::string text, std::string_view old, std::string_view fresh) {
  auto at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), fresh);
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "sluice-bundle-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TempDir() { fs::remove_all(path_); }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

void put(const std::string& path, std::string_view data) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << data;
}

TEST(Manifest, ReadsEveryField) {
  auto manifest = parse_manifest(kGood, "bundle.yaml");
  ASSERT_TRUE(manifest) << manifest.error().message();
  EXPECT_EQ(manifest->ref(), "lint@1.0.0");
  EXPECT_EQ(manifest->bundle_class, Class::kCca);
  EXPECT_EQ(manifest->kernel_min, (KernelVersion{6, 6, 0}));
  EXPECT_THAT(manifest->kernel_features, ElementsAre("struct_ops", "struct_ops-link"));
  EXPECT_EQ(manifest->ecn, Ecn::kTolerates);
  EXPECT_FALSE(manifest->delay);
  EXPECT_TRUE(manifest->loss);
  ASSERT_EQ(manifest->parameters.size(), 2u);
  EXPECT_EQ(manifest->parameters[0].max, 1000u);
  EXPECT_EQ(manifest->parameters[1].when, When::kLoad);
  EXPECT_EQ(manifest->parameters[1].max, ~std::uint64_t{0});
  EXPECT_TRUE(manifest->transitional);
  EXPECT_EQ(manifest->state_tag, "1");
  EXPECT_EQ(range_text(manifest->parameters[0]), "100..1000 permille");
}

struct BadManifest {
  std::string_view name, old, fresh, where, what, remedy;
};
class BadManifests : public ::testing::TestWithParam<BadManifest> {};
TEST_P(BadManifests, NamePlaceAndRemedy) {
  const BadManifest& bad = GetParam();
  auto manifest = parse_manifest(with(std::string(kGood), bad.old, bad.fresh), "b.yaml");
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code, Code::kInvalid);
  EXPECT_EQ(manifest.error().where, bad.where);
  EXPECT_THAT(manifest.error().what, HasSubstr(std::string(bad.what)));
  EXPECT_THAT(manifest.error().remedy, HasSubstr(std::string(bad.remedy)));
}
INSTANTIATE_TEST_SUITE_P(
    All, BadManifests,
    ::testing::Values(
        BadManifest{"UnknownKey", "summary:", "sumary:", "b.yaml:4:1",
                    "unknown key 'sumary' in the bundle (did you mean 'summary'?)", "known keys are"},
        BadManifest{"WrongType", "transitional: true", "transitional: maybe", "b.yaml:16:15",
                    "must be true or false, not 'maybe'", "true or false"},
        BadManifest{"NotAMap", "signals: {ecn: tolerates, delay: false, loss: true}", "signals: [ecn]", "b.yaml:9:10",
                    "must be a map, not a list", "ecn, delay, loss"},
        BadManifest{"Version", "version: 1.0.0", "version: 1.0", "b.yaml:2:10", "'1.0' is not a version", "MAJOR.MINOR.PATCH"},
        BadManifest{"Class", "class: cca", "class: ccaa", "b.yaml:3:8", "(did you mean 'cca'?)", "cca, policy, coll"},
        BadManifest{"Hook", "[ssthresh,", "[sthresh,", "b.yaml:8:9", "(did you mean 'ssthresh'?)", "cong_control"},
        BadManifest{"ObjectPath", "[lint.o]", "[../lint.o]", "b.yaml:6:11", "is not the name of an object", "plain file name"},
        BadManifest{"DefaultRange", "default: 700", "default: 7000", "b.yaml:11:75", "out of the range 100..1000",
                    "its range is 100..1000 permille"},
        BadManifest{"MinAboveMax", "max: 1000", "max: 50", "b.yaml:11:60", "out of the range", "100"},
        BadManifest{"Kernel", "min: \"6.6\"", "min: new", "b.yaml:7:15", "'new' is not a kernel version", "\"6.12\""},
        BadManifest{"TransitionalNeedsEcn", "ecn: tolerates", "ecn: requires", "b.yaml:16:15",
                    "requires ECN cannot be transitional", "tolerates"},
        BadManifest{"Selector", "from: \"*\"", "from: \"a b\"", "b.yaml:14:12", "is 'a b'", "kernel:NAME"},
        BadManifest{"TwiceKey", "state:", "name: x\nstate:", "b.yaml:17:1", "key 'name' is given twice", "keep one"},
        BadManifest{"Alias", "summary: a CCA for tests", "summary: &a x", "b.yaml:4:10", "an anchor (&) is not allowed",
                    "write the value out"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(Manifest, ReportsSeveralProblemsAtOnceAndStopsAtTwenty) {
  std::string text = with(with(std::string(kGood), "class: cca", "class: x"), "version: 1.0.0", "version: x");
  yaml::Problems problems;
  auto manifest = parse_manifest(text, "b.yaml", &problems);
  ASSERT_FALSE(manifest);
  EXPECT_EQ(problems.list().size(), 2u);
  ASSERT_EQ(manifest.error().also.size(), 1u);
  EXPECT_EQ(manifest.error().also[0].where, "b.yaml:3:8");

  std::string many(kGood);
  for (int i = 0; i < 30; ++i) many += fmt::format("strange{}: 1\n", i);
  yaml::Problems cut;
  manifest = parse_manifest(many, "b.yaml", &cut);
  EXPECT_EQ(cut.list().size(), yaml::Problems::kMax);
  EXPECT_EQ(cut.omitted(), 10u);
  ASSERT_EQ(manifest.error().also.size(), yaml::Problems::kMax);
  EXPECT_EQ(manifest.error().also.back().what, "and 10 more problems");
}

TEST(Yaml, RefusesWhatIsNotOneBoundedDocument) {
  for (auto [text, what] : {std::pair{"a: [1", "not valid YAML"},
                            {"", "empty"},
                            {"a: 1\n---\nb: 2\n", "second document"},
                            {"a: *x", "not valid YAML"},
                            {"[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", "nested too deeply"}}) {
    auto node = yaml::parse(text, "t.yaml");
    ASSERT_FALSE(node) << text;
    EXPECT_THAT(node.error().what, HasSubstr(what)) << text;
    EXPECT_THAT(node.error().where, StartsWith("t.yaml:"));
    EXPECT_FALSE(node.error().remedy.empty());
  }
  for (std::string_view text :
       {std::string_view("x: 1\na: \0b", 10), std::string_view("x: 1\na: \xff"), std::string_view("x: 1\na: \xed\xa0\x80"),
        std::string_view("x: 1\na: \xc0\x80"), std::string_view("x: 1\na: \xe2\x82")})
    EXPECT_EQ(yaml::parse(text, "t.yaml").error().where, "t.yaml:2:1");
  EXPECT_TRUE(yaml::parse("a: \xe2\x82\xac \xf0\x9f\x8c\x8a", "t.yaml"));
}

TEST(Version, OrdersAsSemver) {
  std::vector<std::string> sorted = {"0.9.9",      "1.0.0-alpha",  "1.0.0-alpha.1", "1.0.0-alpha.beta",
                                     "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1",
                                     "1.0.0",      "1.0.1",        "1.10.0"};
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (std::size_t j = 0; j < sorted.size(); ++j)
      EXPECT_EQ(*parse_version(sorted[i]) <=> *parse_version(sorted[j]), i <=> j) << sorted[i] << " " << sorted[j];
  for (const char* bad :
       {"", "1", "1.0", "01.0.0", "1.0.0-", "1.0.0-a..b", "1.0.0+build", "1.0.0 ", "-1.0.0", "99999999999.0.0"})
    EXPECT_FALSE(parse_version(bad)) << bad;
}

TEST(VersionRange, ContainsAndSatisfiable) {
  auto range = *parse_version_range(">=1.0.0 <2.0.0");
  EXPECT_TRUE(range.contains(*parse_version("1.9.9")));
  EXPECT_FALSE(range.contains(*parse_version("2.0.0")));
  EXPECT_TRUE(range.satisfiable());
  EXPECT_FALSE(parse_version_range(">=2.0.0 <1.0.0")->satisfiable());
  EXPECT_FALSE(parse_version_range("1.0.0 2.0.0")->satisfiable());
  EXPECT_FALSE(parse_version_range(">1.0.0 <=1.0.0")->satisfiable());
  EXPECT_TRUE(parse_version_range("")->satisfiable());
  EXPECT_TRUE(parse_version_range(">1.0.0")->satisfiable());
}

TEST(KernelName, IsValidShortAndUnique) {
  Version v{1, 0, 0, ""};
  EXPECT_EQ(kernel_name("cubic", v, ""), "cubic.1.0.0");
  std::set<std::string> names;
  int count = 0;
  for (const char* name : {"cubic", "dcn_delay", "dcn_delay_two", "a_very_long_name_indeed", "x"})
    for (std::uint32_t minor = 0; minor < 200; ++minor)
      for (const char* pre : {"", "rc.1"})
        for (const char* instance : {"", "test1", "test2"}) {
          std::string kernel = kernel_name(name, {1, minor, 0, pre}, instance);
          EXPECT_TRUE(valid_cca_name(kernel)) << kernel;
          EXPECT_EQ(kernel.find('-'), std::string::npos) << kernel;
          names.insert(kernel);
          ++count;
        }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(kernel_name("xregion", {1, 0, 0, ""}, "i"), kernel_name("xregion", {1, 0, 0, ""}, "i"));
}

TEST(Sha256, KnownAnswers) {  // FIPS 180-4 examples
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Catalog, FindsVersionsAndKeepsBrokenOnesApart) {
  TempDir dir;
  for (const char* version : {"1.0.0", "1.2.0", "1.10.0", "2.0.0-rc.1"}) {
    put(dir / fmt::format("a/lint/{}/bundle.yaml", version), with(std::string(kGood), "1.0.0", version));
    put(dir / fmt::format("a/lint/{}/lint.o", version), "object");
  }
  put(dir / "b/lint/1.0.0/bundle.yaml", kGood);
  put(dir / "b/lint/1.0.0/lint.o", "other");
  put(dir / "b/lint/3.0.0/bundle.yaml", kGood);  // folder and manifest disagree
  put(dir / "b/lint/3.0.0/lint.o", "other");
  put(dir / "b/lint/4.0.0/bundle.yaml", with(std::string(kGood), "1.0.0", "4.0.0"));  // no object
  Catalog catalog = Catalog::scan({dir / "none", dir / "a", dir / "b"});
  EXPECT_EQ(catalog.list().size(), 4u);
  EXPECT_EQ(catalog.newest("lint")->manifest.version.text(), "1.10.0");
  EXPECT_THAT(catalog.find("lint", {1, 0, 0, ""})->folder, HasSubstr("/a/"));
  EXPECT_EQ(catalog.find("lint", {9, 0, 0, ""}), nullptr);
  ASSERT_EQ(catalog.errors().size(), 2u);
  EXPECT_THAT(catalog.errors()[0].what, HasSubstr("the folder says lint@3.0.0, the manifest lint@1.0.0"));
  EXPECT_THAT(catalog.errors()[1].message(), HasSubstr("lint.o"));
  EXPECT_THAT(catalog.errors()[1].remedy, HasSubstr("build the bundle"));
}

TEST(Digest, ChangesWithEveryFile) {
  TempDir dir;
  put(dir / "x/bundle.yaml", kGood);
  put(dir / "x/lint.o", "1");
  std::string first = read_bundle(dir / "x")->digest;
  EXPECT_THAT(first, StartsWith("sha256:"));
  EXPECT_EQ(read_bundle(dir / "x")->digest, first);
  put(dir / "x/lint.o", "2");
  std::string second = read_bundle(dir / "x")->digest;
  EXPECT_NE(second, first);
  put(dir / "x/bundle.yaml", with(std::string(kGood), "for tests", "for Tests"));
  EXPECT_NE(read_bundle(dir / "x")->digest, second);
}

TEST(Archive, RoundTripIsReproducible) {
  TempDir dir;
  put(dir / "x/bundle.yaml", kGood);
  put(dir / "x/lint.o", std::string(100000, 'o'));
  put(dir / "x/README.md", "read me");
  ASSERT_TRUE(pack(dir / "x", dir / "one.tar.zst"));
  ASSERT_TRUE(pack(dir / "x", dir / "two.tar.zst"));
  EXPECT_EQ(*read_file(dir / "one.tar.zst"), *read_file(dir / "two.tar.zst"));
  auto bundle = unpack(dir / "one.tar.zst", dir / "root");
  ASSERT_TRUE(bundle) << bundle.error().message();
  EXPECT_EQ(bundle->digest, read_bundle(dir / "x")->digest);
  EXPECT_EQ(bundle->folder, dir / "root/lint/1.0.0");
  EXPECT_EQ(*read_file(dir / "root/lint/1.0.0/README.md"), "read me");
  EXPECT_TRUE(unpack(dir / "one.tar.zst", dir / "root"));  // the same again is fine
  put(dir / "x/lint.o", "changed");
  ASSERT_TRUE(pack(dir / "x", dir / "three.tar.zst"));
  auto conflict = unpack(dir / "three.tar.zst", dir / "root");
  ASSERT_FALSE(conflict);
  EXPECT_EQ(conflict.error().code, Code::kConflict);
  EXPECT_THAT(conflict.error().remedy, HasSubstr("new version"));
  EXPECT_EQ(list_dir(dir / "root/lint")->size(), 1u);  // nothing left behind
}

void write_archive(const std::string& path, const std::string& name, unsigned type, const std::string& data) {
  archive* a = archive_write_new();
  archive_write_set_format_pax_restricted(a);
  archive_write_add_filter_zstd(a);
  archive_write_open_filename(a, path.c_str());
  archive_entry* entry = archive_entry_new();
  archive_entry_set_pathname(entry, name.c_str());
  archive_entry_set_filetype(entry, type);
  archive_entry_set_perm(entry, 0644);
  if (type == AE_IFLNK)
    archive_entry_set_symlink(entry, data.c_str());
  else
    archive_entry_set_size(entry, static_cast<la_int64_t>(data.size()));
  archive_write_header(a, entry);
  if (type == AE_IFREG) archive_write_data(a, data.data(), data.size());
  archive_entry_free(entry);
  archive_write_free(a);
}

TEST(Archive, RefusesWhatWouldLeaveItsFolder) {
  TempDir dir;
  for (auto [name, type] : {std::pair<std::string, unsigned>{"../evil", AE_IFREG},
                            {"/etc/evil", AE_IFREG},
                            {"sub/file.o", AE_IFREG},
                            {"lint.o", AE_IFLNK},
                            {"sub", AE_IFDIR},
                            {"pipe", AE_IFIFO}}) {
    write_archive(dir / "bad.tar.zst", name, type, type == AE_IFLNK ? "/etc/passwd" : "x");
    auto bundle = unpack(dir / "bad.tar.zst", dir / "root");
    ASSERT_FALSE(bundle) << name;
    EXPECT_THAT(bundle.error().what, HasSubstr("not a plain file")) << name;
    EXPECT_EQ(bundle.error().where, dir / "bad.tar.zst");
    EXPECT_FALSE(fs::exists(dir / "root")) << name;
  }
  put(dir / "noise.tar.zst", "this is no archive");
  EXPECT_FALSE(unpack(dir / "noise.tar.zst", dir / "root"));
  EXPECT_EQ(unpack(dir / "missing.tar.zst", dir / "root").error().code, Code::kNotFound);
}

// The lint fixtures, built from tests/unit/bundle_lint.bpf.c.
std::string lint_folder(const TempDir& dir, std::string_view object) {
  std::string folder = dir / "lint";
  put(folder + "/lint.o", *read_file(SLUICE_BUILD_DIR "/tests/unit/" + std::string(object)));
  return folder;
}
std::set<std::string> rules_of(const std::vector<Finding>& findings) {
  std::set<std::string> out;
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.where.empty()) << finding.what;
    EXPECT_FALSE(finding.remedy.empty()) << finding.what;
    out.insert(finding.rule);
  }
  return out;
}

TEST(Lint, AGoodBundleHasNoFindings) {
  TempDir dir;
  auto findings = lint(*parse_manifest(kGood, "b.yaml"), lint_folder(dir, "bundle_lint.o"));
  for (const Finding& finding : findings) ADD_FAILURE() << finding.rule << ": " << finding.where << ": " << finding.what;
}

TEST(Lint, ReadsTheObject) {
  auto info = read_object(SLUICE_BUILD_DIR "/tests/unit/bundle_lint.o");
  ASSERT_TRUE(info) << info.error().message();
  EXPECT_TRUE(info->has_btf);
  EXPECT_EQ(info->license, "Dual BSD/GPL");
  ASSERT_EQ(info->struct_ops.size(), 1u);
  EXPECT_EQ(info->struct_ops[0].type, "tcp_congestion_ops");
  EXPECT_EQ(info->struct_ops[0].programs.at("ssthresh"), "lint_ssthresh");
  EXPECT_EQ(info->struct_ops[0].programs.count("init"), 0u);
  ASSERT_EQ(info->calls.size(), 1u);
  EXPECT_EQ(info->calls[0].function, "lint_ssthresh");
  EXPECT_EQ(info->calls[0].r3, 13);
  EXPECT_EQ(info->rodata.at("window_max"), 8u);
  EXPECT_EQ(info->map_values.at("sl_params").at(1).name, "beta");
}

TEST(Lint, EachFaultOfAnObjectIsFound) {
  TempDir dir;
  std::string text = with(std::string(kGood), "{name: beta,",
                          "{name: narrow, type: u32, default: 1, when: live, summary: x}\n  - {name: beta,");
  auto findings = lint(*parse_manifest(text, "b.yaml"), lint_folder(dir, "bundle_lint_bad.o"));
  std::set<std::string> found = rules_of(findings);
  for (const char* rule :
       {"license-missing", "forbidden-helper", "counters-missing", "struct-ops-link", "ecn-contract", "kernel-name",
        "hook-missing", "hook-undeclared", "parameter-missing", "parameter-type", "parameter-undeclared"})
    EXPECT_TRUE(found.count(rule)) << rule;
  int helpers = 0;
  for (const Finding& finding : findings)
    if (finding.rule == "forbidden-helper") {
      ++helpers;
      EXPECT_THAT(finding.where, HasSubstr("in lint_ssthresh"));
    }
  EXPECT_EQ(helpers, 2);  // bpf_trace_printk and TCP_NODELAY
}

TEST(Lint, EachFaultOfAManifestIsFound) {
  TempDir dir;
  std::string folder = lint_folder(dir, "bundle_lint.o");
  auto rules = [&](std::string text) { return rules_of(lint(*parse_manifest(text, "b.yaml"), folder)); };
  std::string good(kGood);
  EXPECT_TRUE(rules(with(good, "license: Dual BSD/GPL\n", "")).count("license-missing"));
  EXPECT_TRUE(rules(with(good, "undo_cwnd]", "init]")).count("hook-required"));
  EXPECT_TRUE(rules(with(good, "cong_avoid, ", "")).count("hook-required"));
  EXPECT_TRUE(rules(with(good, "{to: \"*\"}", "{from: \"lint@>2.0.0 <1.0.0\"}")).count("transition-unsatisfiable"));
  EXPECT_TRUE(rules(with(good, "{from: \"*\"}", "{from: dctcp}")).count("transition-unsatisfiable"));
  EXPECT_TRUE(rules(with(good, "{to: \"*\"}", "{from: a, to: b}")).count("transition-unsatisfiable"));
  EXPECT_TRUE(rules(with(good, "6.6", "6.1")).count("known-bug"));
  EXPECT_TRUE(rules(with(with(good, "ecn: tolerates", "ecn: requires"), "transitional: true", "transitional: false"))
                  .count("ecn-contract"));
  EXPECT_TRUE(rules(with(good, "state:", "shared_maps: [{name: sl_sock, schema: sl.sock@1, access: rw}]\nstate:"))
                  .count("shared-map-missing"));
}

TEST(Lint, AnUnreadableObjectIsAFinding) {
  TempDir dir;
  Manifest manifest = *parse_manifest(kGood, "b.yaml");
  EXPECT_EQ(rules_of(lint(manifest, dir / "nowhere")), std::set<std::string>{"object-unreadable"});
  put(dir / "x/lint.o", "not an object");
  EXPECT_EQ(rules_of(lint(manifest, dir / "x")), std::set<std::string>{"object-unreadable"});
  // Cut anywhere, an object is refused or read as far as it goes: no crash (ASan), no endless loop.
  std::string whole = *read_file(SLUICE_BUILD_DIR "/tests/unit/bundle_lint.o");
  for (std::size_t size = 0; size < whole.size(); size += 97) {
    put(dir / "x/lint.o", std::string_view(whole).substr(0, size));
    EXPECT_THAT(lint(manifest, dir / "x"), Not(IsEmpty())) << size;
  }
}

TEST(KnownBugs, TableIsCompleteAndSelectsByKernel) {
  std::set<std::string_view> ids;
  for (const KnownBug& bug : known_bugs()) {
    EXPECT_TRUE(ids.insert(bug.id).second) << bug.id;
    EXPECT_FALSE(bug.symptom.empty());
    EXPECT_FALSE(bug.remedy.empty());
    for (std::string_view version : {bug.since, bug.fixed})
      EXPECT_TRUE(version.empty() || parse_kernel_version(version)) << bug.id;
  }
  auto has = [](const KernelVersion& kernel, std::string_view id) {
    for (const KnownBug* bug : known_bugs_of(kernel))
      if (bug->id == id) return true;
    return false;
  };
  EXPECT_TRUE(has({6, 9, 12}, "cong-control-signature"));
  EXPECT_FALSE(has({6, 10, 0}, "cong-control-signature"));
  EXPECT_FALSE(has({6, 18, 0}, "tx-start-split"));
  EXPECT_TRUE(has({7, 1, 0}, "tx-start-split"));
}

// schemas/bundle.schema.json says what the parser says: same keys, same words.
TEST(Schema, AgreesWithTheParser) {
  auto schema = nlohmann::json::parse(*read_file(SLUICE_SOURCE_DIR "/schemas/bundle.schema.json"));
  auto keys = [](const nlohmann::json& object) {
    EXPECT_EQ(object.at("additionalProperties"), false);
    std::set<std::string> out;
    for (const auto& [key, value] : object.at("properties").items()) out.insert(key);
    return out;
  };
  auto set = [](const auto& words) { return std::set<std::string>(words.begin(), words.end()); };
  auto words = [](const nlohmann::json& property) { return property.at("enum").get<std::set<std::string>>(); };
  const auto& top = schema.at("properties");
  EXPECT_EQ(keys(schema), set(kManifestKeys));
  EXPECT_EQ(keys(top.at("kernel")), set(kKernelKeys));
  EXPECT_EQ(keys(top.at("signals")), set(kSignalKeys));
  EXPECT_EQ(keys(top.at("state")), set(kStateKeys));
  const auto& parameter = top.at("parameters").at("items");
  EXPECT_EQ(keys(parameter), set(kParameterKeys));
  EXPECT_EQ(keys(top.at("shared_maps").at("items")), set(kSharedMapKeys));
  EXPECT_EQ(keys(top.at("transitions").at("items")), set(kTransitionKeys));
  EXPECT_EQ(words(top.at("class")), set(kClassWords));
  EXPECT_EQ(words(top.at("signals").at("properties").at("ecn")), set(kEcnWords));
  EXPECT_EQ(words(parameter.at("properties").at("type")), set(kTypeWords));
  EXPECT_EQ(words(parameter.at("properties").at("when")), set(kWhenWords));
  EXPECT_EQ(words(top.at("shared_maps").at("items").at("properties").at("access")), set(kAccessWords));

  // Every key the schema requires is one whose absence the parser refuses.
  for (const auto& key : schema.at("required")) {
    std::string text(kGood);
    std::string word = key.get<std::string>() + ":";
    auto at = text.find("\n" + word);
    at = at == std::string::npos ? 0 : at + 1;
    text.erase(at, text.find('\n', at) + 1 - at);
    EXPECT_FALSE(parse_manifest(text, "b.yaml")) << key;
  }
}

// The bundles of this repository are the first users of the format.
TEST(Repository, EveryBundleParses) {
  int count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(SLUICE_SOURCE_DIR "/bpf")) {
    if (entry.path().filename() != "bundle.yaml") continue;
    auto manifest = read_manifest(entry.path());
    EXPECT_TRUE(manifest) << manifest.error().message();
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST(Repository, EveryBuiltBundlePassesLint) {
  Catalog catalog = Catalog::scan({SLUICE_BUILD_DIR "/bundles"});
  for (const Error& error : catalog.errors()) ADD_FAILURE() << error.message();
  EXPECT_FALSE(catalog.list().empty());
  for (const Bundle& bundle : catalog.list())
    for (const Finding& finding : lint(bundle.manifest, bundle.folder))
      EXPECT_NE(finding.severity, Severity::kError)
          << finding.rule << ": " << finding.where << ": " << finding.what << "; " << finding.remedy;
}

}  // namespace
}  // namespace sluice::bundle
