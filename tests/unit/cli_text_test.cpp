// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The pure half of the CLI: text, tables, YAML, the command table and everything that is made from it.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <fstream>
#include <limits>
#include <set>

#include "base/file.h"
#include "cli/help.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/process.h"
#include "cli/text.h"
#include "cli_fake_agent.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Text, WidthCountsColumnsNotBytes) {
  EXPECT_EQ(display_width("cubic"), 5U);
  EXPECT_EQ(display_width("Zürich"), 6U);
  EXPECT_EQ(display_width("e\u0301"), 1U);   // combining accent
  EXPECT_EQ(display_width("東京"), 4U);      // wide
  EXPECT_EQ(display_width("\xff\xfe"), 2U);  // malformed: one replacement each
}

TEST(Text, TruncationNeverExceedsTheColumnsAndNeverSplitsACharacter) {
  EXPECT_EQ(truncate("cross_region", 12), "cross_region");
  EXPECT_EQ(truncate("cross_region", 6), "cross…");
  EXPECT_EQ(truncate("東京都", 4), "東…");
  for (unsigned columns = 0; columns < 8; ++columns) EXPECT_LE(display_width(truncate("aé東b京", columns)), columns);
}

TEST(Text, NothingPrintedCanDriveTheTerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\r\n\x7f"), "a?[2Jb???");
  EXPECT_EQ(printable("\u009b31m"), "?31m");  // C1 CSI
  EXPECT_EQ(printable("a\u202eb"), "a?b");    // right-to-left override
  EXPECT_EQ(printable("x\xc0\xaf\xe6y"), "x\ufffd\ufffd\ufffdy");
  EXPECT_EQ(printable("Zürich 東京"), "Zürich 東京");
}

TEST(Text, NumbersAreForPeople) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1,000");
  EXPECT_EQ(human_count(1234567), "1,234,567");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(1048575), "1.0 MiB");
  EXPECT_EQ(human_us(340), "340 us");
  EXPECT_EQ(human_us(999.9), "1.0 ms");
  EXPECT_EQ(human_us(1234), "1.2 ms");
  EXPECT_EQ(human_us(123'456), "123 ms");
  EXPECT_EQ(human_us(2'500'000), "2.5 s");
  EXPECT_EQ(human_us(125e6), "2 min 5 s");
  EXPECT_EQ(human_us(59.99e6), "1 min");
  EXPECT_EQ(human_ms(2.0 * 3600e3 + 5 * 60e3), "2 h 5 min");
  EXPECT_EQ(human_us(50 * 3600e6), "2 d 2 h");
  EXPECT_EQ(human_us(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(human_us(1e300), "?");
  EXPECT_EQ(human_share(1, 0), "-");
  EXPECT_EQ(human_share(1, 2), "50%");
  EXPECT_EQ(human_share(1, 1000), "0.1%");
  EXPECT_EQ(human_share(999, 1000), "99.9%");
  EXPECT_EQ(utc_time(1'700'000'000'123'456'789), "2023-11-14 22:13:20Z");
  EXPECT_EQ(plural(1, "socket"), "1 socket");
  EXPECT_EQ(plural(2000, "socket"), "2,000 sockets");
}

TEST(Text, TablesLineUpInEveryScript) {
  Table table({}, {{"PLACE"}, {"N", true}, {"NOTE"}});
  table.add({"東京", "7", "a"});
  table.add({"Zürich", "1,200", ""});
  EXPECT_EQ(table.flush(),
            "PLACE       N  NOTE\n"
            "東京        7  a\n"
            "Zürich  1,200\n");
  table.add({"x", "1", "b"});  // a later batch keeps the columns and has no second header
  EXPECT_EQ(table.flush(), "x           1  b\n");
  EXPECT_EQ(table.flush(), "");
}

TEST(Text, TablesAreCutOnlyOnATerminalAndOnlyWhereTheyMay) {
  const std::string name(40, 'n');
  const auto print = [&](unsigned columns) {
    Table table({false, columns}, {{"NAME", false, true}, {"VERSION"}});
    table.add({name, "1.0.0"});
    return table.flush();
  };
  EXPECT_THAT(print(0), HasSubstr(name + "  1.0.0"));
  EXPECT_EQ(print(20), "NAME         VERSION\n" + std::string(10, 'n') + "…  1.0.0\n");
  EXPECT_THAT(print(3), HasSubstr("nnnnn…  1.0.0"));  // too narrow for all: the rest is kept
}

TEST(Text, TypingErrorsFindTheirWord) {
  const std::vector<std::string_view> names = {"apply", "status", "sockets", "rollback", "cca", "down"};
  EXPECT_EQ(nearest("aply", names), "apply");
  EXPECT_EQ(nearest("stauts", names), "status");
  EXPECT_EQ(nearest("rolback", names), "rollback");
  EXPECT_EQ(nearest("frobnicate", names), "");
  EXPECT_EQ(nearest("x", names), "");
}

TEST(Yaml, IsReadBackAsTheSameValues) {
  const std::string yaml = yaml_from_json(
      R"({"a":"yes","b":"10","c":1.5,"d":true,"e":[],"f":{},"g":[{"x":"1: 2","y":[1,2]},"- z"],"h":{"k y":"line\nbreak"},"i":"cubic@1.0.0","j":null})");
  EXPECT_EQ(yaml,
            "a: \"yes\"\nb: \"10\"\nc: 1.5\nd: true\ne: []\nf: {}\ng:\n  - x: \"1: 2\"\n    \"y\":\n      - 1\n      - 2\n"
            "  - \"- z\"\nh:\n  \"k y\": \"line\\nbreak\"\ni: cubic@1.0.0\nj: null\n");
  const YAML::Node node = YAML::Load(yaml);
  EXPECT_EQ(node["a"].as<std::string>(), "yes");
  EXPECT_EQ(node["a"].Tag(), "!");  // quoted: a string for every reader
  EXPECT_EQ(node["g"][0]["y"][1].as<int>(), 2);
  EXPECT_EQ(node["g"][1].as<std::string>(), "- z");
  EXPECT_EQ(node["h"]["k y"].as<std::string>(), "line\nbreak");
  EXPECT_TRUE(node["e"].IsSequence() && node["f"].IsMap() && node["j"].IsNull());
}

// ---- the command table
// -------------------------------------------------------------------------------------------------------

std::string value_of(ValueKind kind, const std::vector<std::string_view>& choices) {
  switch (kind) {
    case ValueKind::kChoice:
      return std::string(choices.front());
    case ValueKind::kNumber:
      return "7";
    case ValueKind::kSeconds:
      return "1.5";
    default:
      return "text";
  }
}

TEST(CommandTable, EveryCommandTakesEveryOptionItDeclares) {
  for (const NamedCommand& named : all_commands()) {
    if (named.command->handler == nullptr) continue;
    std::vector<std::string> words = {named.path.substr(0, named.path.find(' '))};
    if (named.path.find(' ') != std::string::npos) words.push_back(named.path.substr(named.path.find(' ') + 1));
    std::set<std::string_view> names;
    for (const Command* command : {named.command, &root()})
      for (const Option& option : command->options) {
        EXPECT_TRUE(names.insert(option.name).second) << named.path << " --" << option.name << " means two things";
        words.push_back("--" + std::string(option.name));
        if (option.kind != ValueKind::kFlag) words.push_back(value_of(option.kind, option.choices));
      }
    for (const Argument& argument : named.command->arguments) words.push_back(value_of(argument.kind, argument.choices));
    const auto call = parse(words);
    ASSERT_TRUE(call) << named.path << ": " << call.error().message();
    EXPECT_EQ(call->path, named.path);
    for (std::string_view name : names) EXPECT_TRUE(call->has(name)) << named.path << " --" << name;
  }
}

TEST(CommandTable, IsCompleteForTheReader) {
  std::map<std::string_view, std::pair<std::string_view, char>> meanings;  // the bash script keeps one list for all commands
  for (const NamedCommand& named : all_commands()) {
    const Command& command = *named.command;
    EXPECT_FALSE(command.summary.empty() || command.description.empty()) << named.path;
    EXPECT_NE(command.handler != nullptr, !command.subcommands.empty()) << named.path;
    EXPECT_TRUE(command.handler == nullptr || !command.examples.empty()) << named.path;
    for (const Option& option : command.options) {
      const bool takes = option.kind != ValueKind::kFlag;
      EXPECT_EQ(takes, !option.value.empty()) << named.path << " --" << option.name;
      const std::pair meaning(option.value, option.letter);
      EXPECT_EQ(meanings.emplace(option.name, meaning).first->second, meaning) << option.name;
      EXPECT_EQ(option.kind == ValueKind::kChoice, !option.choices.empty()) << option.name;
    }
    for (const Example& example : command.examples) EXPECT_THAT(std::string(example.command), HasSubstr("sluice"));
  }
}

TEST(CommandTable, EveryViewNamesEveryCommandAndOption) {
  std::string man = render_man();
  std::string plain;  // without roff's escapes
  for (std::size_t i = 0; i < man.size(); ++i)
    if (man[i] != '\\' || man.compare(i, 2, "\\-") != 0) plain += man[i];
  const std::string reference = render_reference();
  const std::string bash = render_completion("bash"), zsh = render_completion("zsh"), fish = render_completion("fish");
  for (const NamedCommand& named : all_commands()) {
    const std::string help = render_help(*named.command, named.path, {});
    EXPECT_THAT(help, HasSubstr("sluice " + named.path + " [OPTION...]"));
    EXPECT_THAT(plain, HasSubstr(".SS sluice " + named.path));
    EXPECT_THAT(reference, HasSubstr("\n## sluice " + named.path + "\n"));
    EXPECT_THAT(bash, HasSubstr("'" + named.path + "')"));
    EXPECT_THAT(zsh, HasSubstr("'" + std::string(named.command->name) + ":"));
    EXPECT_THAT(fish, HasSubstr("-a " + std::string(named.command->name) + " "));
    for (const Command* command : {named.command, &root()})
      for (const Option& option : command->options) {
        const std::string flag = "--" + std::string(option.name);
        EXPECT_THAT(help, HasSubstr(flag)) << named.path;
        EXPECT_THAT(plain, HasSubstr(flag));
        EXPECT_THAT(reference, HasSubstr("`" + (option.letter ? std::string("-") + option.letter + ", " : "") + flag));
        EXPECT_THAT(bash, HasSubstr(flag));
        EXPECT_THAT(zsh, HasSubstr("'" + flag + (option.kind == ValueKind::kFlag ? "[" : "=[")));
        EXPECT_THAT(fish, HasSubstr("-l " + std::string(option.name) + " "));
      }
    for (const Argument& argument : named.command->arguments)
      EXPECT_THAT(help, HasSubstr(std::string(argument.summary).substr(0, 20)));
  }
}

TEST(CommandTable, TheReferencePageIsWhatTheTableSays) {
  const auto page = read_file(SLUICE_SOURCE_DIR "/docs/reference/cli.md");
  ASSERT_TRUE(page) << page.error().message();
  EXPECT_EQ(*page, render_reference()) << "make it with: sluice --print-reference > docs/reference/cli.md";
}

// ---- usage
// -------------------------------------------------------------------------------------------------------------------

std::string usage_error(const std::vector<std::string>& words) {
  const auto call = parse(words);
  return call ? "accepted" : call.error().message();
}

TEST(Usage, ErrorsNameTheWordAndWhatWasMeant) {
  EXPECT_EQ(usage_error({"aply", "x"}), "unknown command 'aply'; did you mean 'apply'?; run `sluice --help`");
  EXPECT_EQ(usage_error({"cca", "lst"}), "unknown command 'cca lst'; did you mean 'cca list'?; run `sluice cca --help`");
  EXPECT_EQ(usage_error({"frobnicate"}), "unknown command 'frobnicate'; run `sluice --help`");
  EXPECT_EQ(usage_error({"status", "--wach"}), "unknown option '--wach'; did you mean '--watch'?; run `sluice status --help`");
  EXPECT_EQ(usage_error({"status", "--ouput=json"}),
            "unknown option '--ouput'; did you mean '--output'?; run `sluice status --help`");
  EXPECT_EQ(usage_error({"apply", "a", "b"}), "'b' is one word too many; run `sluice apply --help`");
  EXPECT_EQ(usage_error({"apply"}),
            "`sluice apply` needs FILE: the policy document; - reads standard input; run `sluice apply --help`");
  EXPECT_EQ(usage_error({"status", "--output", "jsn"}),
            "--output takes one of table, json, yaml, not 'jsn'; did you mean 'json'?; run `sluice status --help`");
  EXPECT_EQ(usage_error({"status", "--output"}), "--output needs a value, and only one; run `sluice status --help`");
  EXPECT_EQ(usage_error({"sockets", "--limit", "-1"}),
            "--limit takes a number from 0 to 4294967295, not '-1'; run `sluice sockets --help`");
  EXPECT_EQ(usage_error({"explain", "10.0.0.1", "--port", "65536"}),
            "--port takes a number from 0 to 65535, not '65536'; run `sluice explain --help`");
  for (const char* bad : {"0", "-1", "x", "nan", "inf", "1e9", "1s", ""})
    EXPECT_THAT(usage_error({"status", "--timeout", bad}), HasSubstr("--timeout takes seconds")) << bad;
}

TEST(Usage, OptionsStandAnywhereAndTheLastOneWins) {
  const auto call = parse({"-o", "json", "explain", "10.0.0.1", "--output", "yaml", "--timeout=2.5", "-qv"});
  ASSERT_TRUE(call) << call.error().message();
  EXPECT_EQ(call->path, "explain");
  EXPECT_EQ(call->text("output"), "yaml");
  EXPECT_EQ(call->seconds("timeout"), 2.5);
  EXPECT_TRUE(call->has("quiet") && call->has("verbose") && !call->has("wait"));
  EXPECT_EQ(call->text("DST"), "10.0.0.1");
}

TEST(Usage, ArgumentsMayLookLikeCommands) {
  const auto call = parse({"apply", "status"});
  ASSERT_TRUE(call) << call.error().message();
  EXPECT_EQ(call->path, "apply");
  EXPECT_EQ(call->text("FILE"), "status");
  const auto lint = parse({"bundle", "lint", "a", "list", "c"});
  ASSERT_TRUE(lint) << lint.error().message();
  EXPECT_THAT(lint->list("DIR"), ElementsAre("a", "list", "c"));
  EXPECT_EQ(parse({"apply", "-"})->text("FILE"), "-");
}

TEST(Usage, DefaultsComeFromTheTable) {
  const auto call = parse({"status"});
  ASSERT_TRUE(call);
  EXPECT_EQ(call->text("output"), "table");
  EXPECT_EQ(call->seconds("interval"), 2);
  EXPECT_FALSE(call->has("interval"));
}

// ---- what shells and man make of it
// ------------------------------------------------------------------------------------------

const Deadline kSoon = std::chrono::steady_clock::now() + std::chrono::minutes(2);

Output must_run(const std::vector<std::string>& argv) {
  auto output = run_program(argv, kSoon, -1);
  EXPECT_TRUE(output) << output.error().message();
  return output.value_or(Output{});
}

std::string write(const TempFolder& folder, std::string_view name, const std::string& text) {
  const std::string path = folder / name;
  EXPECT_TRUE(write_file_atomic(path, text));
  return path;
}

class Shell : public testing::TestWithParam<const char*> {};

TEST_P(Shell, AcceptsItsCompletionScript) {
  const std::string shell = GetParam();
  if (must_run({"sh", "-c", "command -v " + shell}).status != 0) GTEST_SKIP() << shell << " is not installed (tools/deps)";
  const TempFolder folder;
  const Output checked = must_run({shell, "-n", write(folder, "script", render_completion(shell))});
  EXPECT_EQ(checked.status, 0) << checked.err;
  EXPECT_EQ(checked.err, "");
}
INSTANTIATE_TEST_SUITE_P(Completion, Shell, testing::Values("bash", "zsh", "fish"));

TEST(Completion, BashCompletesCommandsOptionsAndValues) {
  const TempFolder folder;
  const std::string script = write(folder, "script", render_completion("bash"));
  const auto complete = [&](const std::string& line) {  // the last word is the one to complete
    return must_run({"bash", "-c",
                     "source " + script + "; COMP_WORDS=(" + line +
                         "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _sluice; echo \"${COMPREPLY[*]}\""})
        .out;
  };
  EXPECT_EQ(complete("sluice st"), "status\n");
  EXPECT_EQ(complete("sluice cca ''"), "list show\n");
  EXPECT_EQ(complete("sluice --output json cca s"), "show\n");
  EXPECT_EQ(complete("sluice explain 10.0.0.1 --p"), "--port --pid\n");
  EXPECT_EQ(complete("sluice sockets --by ''"), "cca version locality netns\n");
  EXPECT_EQ(complete("sluice status -o ''"), "table json yaml\n");
  EXPECT_EQ(complete("sluice completion f"), "fish\n");
  EXPECT_EQ(complete("sluice apply " + script.substr(0, script.size() - 2)), script + "\n");
}

TEST(Completion, FishCompletesCommandsOptionsAndValues) {
  if (must_run({"sh", "-c", "command -v fish"}).status != 0) GTEST_SKIP() << "fish is not installed (tools/deps)";
  const TempFolder folder;
  const std::string script = write(folder, "script", render_completion("fish"));
  const auto complete = [&](const std::string& line) {
    return must_run({"env", "HOME=" + (folder / ""), "fish", "--no-config", "-c",
                     "source " + script + "; complete -C '" + line + "' | string split -f1 \\t"})
        .out;
  };
  EXPECT_EQ(complete("sluice stat"), "status\n");
  EXPECT_EQ(complete("sluice cca "), "list\nshow\n");
  EXPECT_EQ(complete("sluice sockets --by "), "cca\nlocality\nnetns\nversion\n");
  EXPECT_EQ(complete("sluice explain --po"), "--port\n");
}

TEST(ManPage, RendersWithoutAWarning) {
  const TempFolder folder;
  const std::string page = write(folder, "sluice.8", render_man());
  const Output rendered = must_run({"groff", "-man", "-Tutf8", "-ww", "-z", page});
  EXPECT_EQ(rendered.status, 0);
  EXPECT_EQ(rendered.err, "");
  const Output text = must_run({"env", "MANWIDTH=100", "LC_ALL=C.UTF-8", "man", "-P", "cat", "-l", page});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* expected :
       {"SLUICE(8)", "sluice explain [OPTION...] DST", "--bundle-path DIR", "EXIT STATUS", "sluice sockets --by version"})
    EXPECT_THAT(text.out, HasSubstr(expected));
}

// ---- other programs
// ----------------------------------------------------------------------------------------------------------

TEST(Process, OutputStatusAndErrorsComeBack) {
  const Output output = must_run({"sh", "-c", "echo out; echo err >&2; exit 3"});
  EXPECT_EQ(output.out, "out\n");
  EXPECT_EQ(output.err, "err\n");
  EXPECT_EQ(output.status, 3);
  EXPECT_EQ(must_run({"sh", "-c", "kill -9 $$"}).status, 137);
  EXPECT_EQ(must_run({"sh", "-c", "head -c 1000000 /dev/zero"}).out.size(), 1'000'000U);
  EXPECT_EQ(run_program({"/does/not/exist"}, kSoon, -1).error().code, Code::kNotFound);
}

TEST(Process, TheDeadlineEndsIt) {
  const auto hung = run_program({"cat", "/dev/zero"}, std::chrono::steady_clock::now() + std::chrono::milliseconds(50), -1);
  ASSERT_FALSE(hung);
  EXPECT_EQ(hung.error().code, Code::kTimeout);
  const UniqueFd interrupt(::eventfd(1, EFD_CLOEXEC));
  EXPECT_EQ(run_program({"sleep", "1000"}, kSoon, interrupt.get()).error().code, Code::kTimeout);
}

TEST(Paths, OfInstances) {
  const auto one = instance_paths();
  ASSERT_TRUE(one);
  EXPECT_EQ(one->socket, "/run/sluice/agent.sock");
  EXPECT_EQ(one->state_dir, "/var/lib/sluice");
  EXPECT_EQ(one->pin_dir, "/sys/fs/bpf/sluice/v1/default");
  EXPECT_EQ(instance_paths("default")->socket, one->socket);
  EXPECT_EQ(instance_paths("t1")->socket, "/run/sluice/t1/agent.sock");
  EXPECT_EQ(instance_paths("t1")->state_dir, "/var/lib/sluice/t1");
  EXPECT_EQ(instance_paths("t1")->pin_dir, "/sys/fs/bpf/sluice/v1/t1");
  for (const char* bad : {"..", "a/b", "-a", "A", "a b", "012345678901234567890123456789012"}) {
    ASSERT_FALSE(instance_paths(bad)) << bad;
    EXPECT_EQ(instance_paths(bad).error().code, Code::kInvalid);
  }
  EXPECT_THAT(default_bundle_path("/src/build/release/bin/sluice"),
              ElementsAre("/src/build/release/bundles", "/src/build/release/lib/sluice/bundles", "/usr/lib/sluice/bundles",
                          "/var/lib/sluice/bundles"));
  EXPECT_THAT(default_bundle_path("/usr/bin/sluice"),
              ElementsAre("/usr/bundles", "/usr/lib/sluice/bundles", "/var/lib/sluice/bundles"));
  EXPECT_THAT(default_bundle_path(""), ElementsAre("/usr/lib/sluice/bundles", "/var/lib/sluice/bundles"));
}

}  // namespace
}  // namespace sluice::cli
