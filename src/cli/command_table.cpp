// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "cli/command_table.h"

#include "base/paths.h"
#include "cli/commands.h"

namespace sluice::cli {
namespace {

constexpr double kRead_s = 30;
constexpr double kChange_s = 120;  // commands that change the host also wait for its sockets to move

const Argument kDocument = {.name = "FILE", .kind = ValueKind::kFile, .summary = "the policy document; - reads standard input"};

const std::vector<Option> kApplyOptions = {
    {.name = "no-migrate",
     .summary = "only new connections follow; open ones move by themselves or by a later `sluice migrate`"},
    {.name = "clear-rollbacks", .summary = "take versions of the document back into use that were rolled back before"},
};

const std::vector<ExitStatus> kMigrationExits = {{kDegraded, "sockets are left on an old version; the reasons are listed"}};

Command ecn_command() {
  return {.name = "ecn",
          .summary = "what paths do to ECN",
          .description =
              "Asks a path before connections depend on it. What was found is kept for 30 days with the place of the "
              "destination, and shown by `explain`.",
          .subcommands = {
              {.name = "probe",
               .summary = "does this path negotiate ECN, and do marks survive?",
               .description =
                   "The agent opens a TCP connection to DST and sends at most 400 small packets: is ECN negotiated, is a "
                   "mark "
                   "echoed, are packets with ECT dropped, where are marks or the DSCP changed? The application there gets no "
                   "data, "
                   "only a connection that is closed again. What cannot be told from this end is unknown, with the reason.\n\n"
                   "An interrupted command does not interrupt the agent: `ecn list` shows what it found.",
               .handler = run_ecn_probe,
               .timeout_s = kChange_s,
               .arguments = {{.name = "DST", .summary = "address or name, with or without a port"}},
               .options = {{.name = "port",
                            .kind = ValueKind::kNumber,
                            .value = "N",
                            .summary = "port of a TCP server there, unless DST has one",
                            .fallback = "443",
                            .max = 65535},
                           {.name = "from", .kind = ValueKind::kText, .value = "SRC", .summary = "local address"},
                           {.name = "dscp",
                            .kind = ValueKind::kNumber,
                            .value = "N",
                            .summary = "DSCP of every probe, as the traffic in question has it",
                            .fallback = "0",
                            .max = 63},
                           {.name = "ipv4", .letter = '4', .summary = "the IPv4 address of a name"},
                           {.name = "ipv6", .letter = '6', .summary = "the IPv6 address of a name"}},
               .examples = {{"sudo sluice ecn probe 10.2.0.7 --port 22", ""},
                            {"sudo sluice ecn probe '[fd00:2::7]:443' --from fd00:1::1", ""},
                            {"sudo sluice ecn probe www.example.org -6 --output json", ""}},
               .exits = {{kFailed, "it could not be found out: nothing listens, nothing answers, or the time ran out"},
                         {kDegraded, "ECN does not work on this path: the verdict says what is in the way"},
                         {kConflict, "the destination, or too many others, are being probed already"}}},
              {.name = "list",
               .summary = "what was found so far",
               .description = "Newest first, one line for each destination, port and DSCP.",
               .handler = run_ecn_list,
               .timeout_s = kRead_s,
               .arguments = {{.name = "DST", .summary = "only this address, with its hops", .required = false}},
               .examples = {{"sluice ecn list", ""}, {"sluice ecn list 10.2.0.7", ""}}}}};
}

Command make_root() {
  Command sluice;
  sluice.name = "sluice";
  sluice.summary = "congestion control of this host's TCP connections, by policy";
  sluice.description =
      "Sluice gives each TCP connection of this host the congestion-control algorithm (CCA) that a policy document asks for, "
      "changes it "
      "while connections are open, shows what the kernel really does, and takes it back. The commands ask the agent, sluiced, "
      "through its socket; `up` starts it.";
  sluice.options = {
      {.name = "instance",
       .kind = ValueKind::kText,
       .value = "NAME",
       .summary = "the agent's instance, where several share this kernel"},
      {.name = "socket",
       .kind = ValueKind::kText,
       .value = "PATH",
       .summary = "the agent's socket; wins over --instance and SLUICE_SOCKET"},
      {.name = "output",
       .letter = 'o',
       .kind = ValueKind::kChoice,
       .value = "FORMAT",
       .summary = "table for people; json and yaml follow the API's schema",
       .choices = {"table", "json", "yaml"},
       .fallback = "table"},
      {.name = "timeout", .kind = ValueKind::kSeconds, .value = "S", .summary = "bound on the whole command, in seconds"},
      {.name = "wait",
       .summary = "until --timeout, wait for an agent that does not answer yet; `status` waits until nothing is degraded"},
      {.name = "bundle-path",
       .kind = ValueKind::kFolder,
       .value = "DIR",
       .summary = "folders with bundles, separated by colons, instead of those installed with this program and "
                  "/var/lib/sluice/bundles"},
      {.name = "no-color", .summary = "no colours; NO_COLOR does the same"},
      {.name = "quiet", .letter = 'q', .summary = "no progress and no summary of what was done"},
      {.name = "verbose", .letter = 'v', .summary = "each step, every counter, and the whole detail of errors"},
      {.name = "help", .letter = 'h', .summary = "this text, or a command's"},
      {.name = "version", .summary = "print the version"},
  };
  sluice.examples = {
      {"sudo sluice up policy.yaml", "start the agent where it does not run yet, and apply the policy"},
      {"sluice status", "what runs where; problems first"},
      {"sudo sluice rollback", "back to the transitional CCA"},
      {"sudo sluice down", "restore the host to what it was"},
  };

  sluice.subcommands = {
      {.name = "up",
       .summary = "start the agent where it does not run, then apply a policy",
       .description =
           "Starts sluiced through systemd where its unit is installed, otherwise as a process of its own that writes to its "
           "log, waits until it answers, and applies the document. With an agent that runs, the same as `apply`.",
       .handler = run_up,
       .timeout_s = kChange_s,
       .arguments = {kDocument},
       .options = kApplyOptions,
       .examples = {{"sudo sluice up policy.yaml", ""},
                    {"sudo sluice --instance test up policy.yaml", "an agent beside the default one"}},
       .exits = kMigrationExits},
      {.name = "apply",
       .summary = "make the kernel follow a policy document",
       .description = "New connections follow the document at one moment, all or none; then open ones are migrated, listeners "
                      "included, in "
                      "every network namespace. A document with an error changes nothing.",
       .handler = run_apply,
       .timeout_s = kChange_s,
       .arguments = {kDocument},
       .options = kApplyOptions,
       .examples = {{"sudo sluice apply policy.yaml", ""}, {"generate | sudo sluice apply -", "from standard input"}},
       .exits = kMigrationExits},
      {.name = "diff",
       .summary = "what apply would do",
       .description = "Compares the document with the kernel as it is. Changes nothing; the exit status does not tell whether "
                      "there are differences.",
       .handler = run_diff,
       .timeout_s = kRead_s,
       .arguments = {kDocument},
       .examples = {{"sluice diff policy.yaml", ""}}},
      {.name = "status",
       .summary = "what the kernel does now",
       .description =
           "Read from the kernel, never from the policy: problems with their remedies, then for each version of each CCA its "
           "sockets, their share, mean window and round-trip time, and where they are.",
       .handler = run_status,
       .timeout_s = kRead_s,
       .options = {{.name = "watch", .letter = 'w', .summary = "again and again, until Ctrl-C"},
                   {.name = "interval",
                    .kind = ValueKind::kSeconds,
                    .value = "S",
                    .summary = "seconds between two looks of --watch",
                    .fallback = "2"},
                   {.name = "no-sockets", .summary = "do not walk the sockets (half a microsecond each)"}},
       .examples = {{"sluice status", ""},
                    {"sluice status --watch", ""},
                    {"sluice status --wait --timeout 60", "until nothing is degraded"}},
       .exits = {{kDegraded, "the state is degraded"}}},
      {.name = "explain",
       .summary = "which CCA a connection gets, and why",
       .description = "Follows the agent's own decision for a remote address step by step: place, locality, service, rule, CCA "
                      "and parameters.",
       .handler = run_explain,
       .timeout_s = kRead_s,
       .arguments = {{.name = "DST", .summary = "remote address, with or without a port"}},
       .options = {{.name = "from", .kind = ValueKind::kText, .value = "SRC", .summary = "local address"},
                   {.name = "port", .kind = ValueKind::kNumber, .value = "N", .summary = "local port", .max = 65535},
                   {.name = "pid",
                    .kind = ValueKind::kNumber,
                    .value = "PID",
                    .summary = "as a connection of this process",
                    .max = INT32_MAX},
                   {.name = "cgroup",
                    .kind = ValueKind::kText,
                    .value = "PATH",
                    .summary = "as a connection of this cgroup, a path below the cgroup2 root"}},
       .examples = {{"sluice explain 10.2.0.7", ""}, {"sluice explain '[fd00:2::7]:443' --pid 4711", ""}}},
      {.name = "sockets",
       .summary = "the TCP sockets and their CCAs",
       .description =
           "One line a socket, or with --by one line a group. Filters can be combined. ECN is one of: off; asked, in SYN_SENT; "
           "negotiated, both ends agreed; echoing, and marks come back; blind, it sends ECT although the peer did not agree; "
           "refused, its rule's CCA needs ECN and it has none, so it runs the transitional CCA.",
       .handler = run_sockets,
       .timeout_s = kRead_s,
       .options = {{.name = "by",
                    .kind = ValueKind::kChoice,
                    .value = "KEY",
                    .summary = "count by this instead of listing",
                    .choices = {"cca", "version", "locality", "netns"}},
                   {.name = "ecn", .summary = "what each sends and gets of ECN, instead of windows and round-trip times"},
                   {.name = "cca", .kind = ValueKind::kText, .value = "NAME", .summary = "only sockets of this CCA"},
                   {.name = "locality",
                    .kind = ValueKind::kChoice,
                    .value = "LOCALITY",
                    .summary = "only sockets of this locality",
                    .choices = {"intra_rack", "intra_dc", "intra_region", "cross_region", "external", "unknown"}},
                   {.name = "netns",
                    .kind = ValueKind::kNumber,
                    .value = "INODE",
                    .summary = "only sockets of this network namespace"},
                   {.name = "limit",
                    .letter = 'n',
                    .kind = ValueKind::kNumber,
                    .value = "N",
                    .summary = "at most so many; 0 = all",
                    .fallback = "0"}},
       .examples = {{"sluice sockets --by version", ""},
                    {"sluice sockets --ecn", ""},
                    {"sluice sockets --cca cubic --locality cross_region", ""}}},
      {.name = "cca",
       .summary = "CCAs in the kernel and in the bundles",
       .description = "Our versions, native and foreign CCAs, told apart by the kernel's map id rather than by name.",
       .subcommands = {{.name = "list",
                        .summary = "all CCAs",
                        .description = "One line a version.",
                        .handler = run_cca_list,
                        .timeout_s = kRead_s,
                        .examples = {{"sluice cca list", ""}}},
                       {.name = "show",
                        .summary = "one CCA: parameters, users, counters",
                        .description = "Every version of the CCA, or the one that is named.",
                        .handler = run_cca_show,
                        .timeout_s = kRead_s,
                        .arguments = {{.name = "NAME", .summary = "NAME or NAME@VERSION"}},
                        .examples = {{"sluice cca show cubic@1.0.0", ""}}}}},
      {.name = "migrate",
       .summary = "move open connections to what the policy says now",
       .description =
           "Walks the established and listening sockets of every network namespace until none is left on an old version. "
           "Repeating it does no harm.",
       .handler = run_migrate,
       .timeout_s = kChange_s,
       .options = {{.name = "dry-run", .summary = "only count what would move"}},
       .examples = {{"sudo sluice migrate", ""}, {"sudo sluice migrate --dry-run", ""}},
       .exits = kMigrationExits},
      {.name = "rollback",
       .summary = "replace a version by the transitional CCA, at once",
       .description = "New and open connections of the version go to the transitional CCA, which is always loaded; then the "
                      "version is retired. "
                      "Needs no controller. The version stays out of use until `apply --clear-rollbacks`.",
       .handler = run_rollback,
       .timeout_s = kChange_s,
       .arguments = {{.name = "TARGET",
                      .summary = "NAME or NAME@VERSION; by default the version that came last",
                      .required = false}},
       .examples = {{"sudo sluice rollback", ""}, {"sudo sluice rollback cubic@1.1.0", ""}},
       .exits = {{kDegraded, "sockets are left on the version, or something else still uses it; both are listed"}}},
      {.name = "doctor",
       .summary = "what this kernel and host can do, and how to mend it",
       .description = "Checks features with the kernel version that brings them, known bugs, cgroup2, bpffs, BTF, and programs "
                      "of others on our "
                      "hooks. Works without an agent too.",
       .handler = run_doctor,
       .timeout_s = kRead_s,
       .examples = {{"sudo sluice doctor", ""}},
       .exits = {{kDegraded, "a check failed or a feature is missing"}}},
      {.name = "audit",
       .summary = "programs of others on our hooks, and what they overrule",
       .description =
           "Lists every program on the hooks we use, at our cgroup, above and below it, in the order in which the kernel runs "
           "them: who holds it, what its instructions can do to a connection, and whether that overrules ours. Then the "
           "sockets "
           "that do not run what the policy wants, with the program that can have done it, how much room the hook has, and how "
           "often our program was found detached since the agent started. Changes nothing.",
       .handler = run_audit,
       .timeout_s = kRead_s,
       .options = {{.name = "no-sockets", .summary = "do not walk the sockets (half a microsecond each)"}},
       .examples = {{"sluice audit", ""}, {"sluice audit --output json", "for a monitor"}},
       .exits = {{kDegraded, "something overrules ours or can, or our program is or was found detached"}}},
      ecn_command(),
      {.name = "events",
       .summary = "what the agent did",
       .description = "Oldest first. As json, one object a line.",
       .handler = run_events,
       .timeout_s = kRead_s,
       .options = {{.name = "follow", .letter = 'f', .summary = "go on with new ones, until Ctrl-C"},
                   {.name = "limit",
                    .letter = 'n',
                    .kind = ValueKind::kNumber,
                    .value = "N",
                    .summary = "the last N",
                    .fallback = "100"},
                   {.name = "after",
                    .kind = ValueKind::kNumber,
                    .value = "ID",
                    .summary = "only those after this one",
                    .max = UINT64_MAX}},
       .examples = {{"sluice events --follow", ""}}},
      {.name = "down",
       .summary = "take everything back",
       .description = "Moves our sockets to native CCAs, removes programs, maps and pins, and restores the sysctls that were "
                      "changed. Refused, with the "
                      "list of users, while anything still uses a CCA that would go.",
       .handler = run_down,
       .timeout_s = kChange_s,
       .options = {{.name = "move-to",
                    .kind = ValueKind::kText,
                    .value = "CCA",
                    .summary = "native CCA for our sockets; by default each namespace's own"}},
       .examples = {{"sudo sluice down", ""}},
       .exits = {{kDegraded, "sockets are left on our CCAs"},
                 {kConflict, "something still uses our CCAs; the users are listed"}}},
      {.name = "bundle",
       .summary = "bundles on disk; needs no agent",
       .description = "A bundle is a folder with bundle.yaml and BPF objects, or an archive of it.",
       .subcommands =
           {{.name = "lint",
             .summary = "find what passes the verifier but is known to hurt",
             .description = "Reads the manifest and the objects, and loads nothing.",
             .handler = run_bundle_lint,
             .arguments = {{.name = "DIR", .kind = ValueKind::kFolder, .summary = "folders of bundles", .many = true}},
             .examples = {{"sluice bundle lint build/release/bundles/cubic/1.0.0", ""}},
             .exits = {{kFailed, "at least one error was found; warnings alone are 0"}}},
            {.name = "show",
             .summary = "what a bundle says about itself",
             .description = "Takes a folder, or a name that is looked up in --bundle-path.",
             .handler = run_bundle_show,
             .arguments = {{.name = "BUNDLE",
                            .kind = ValueKind::kFolder,
                            .summary = "a folder, NAME or NAME@VERSION; NAME is its newest version"}},
             .examples = {{"sluice bundle show cubic", ""}}},
            {.name = "list",
             .summary = "all bundles of --bundle-path",
             .description = "A broken bundle is reported and hides no other.",
             .handler = run_bundle_list,
             .examples = {{"sluice bundle list", ""}},
             .exits = {{kDegraded, "a bundle could not be read"}}},
            {.name = "pack",
             .summary = "make an archive of a bundle",
             .description = "The same bundle gives the same bytes.",
             .handler = run_bundle_pack,
             .arguments = {{.name = "DIR", .kind = ValueKind::kFolder, .summary = "folder of the bundle"}},
             .options = {{.name = "file",
                          .kind = ValueKind::kFile,
                          .value = "FILE",
                          .summary = "the archive to write; default NAME-VERSION.tar.zst in this folder"}},
             .examples = {{"sluice bundle pack build/release/bundles/cubic/1.0.0", ""}}},
            {.name = "unpack",
             .summary = "install an archive where the agent finds it",
             .description =
                 "Into NAME/VERSION below a folder of bundles; a version that is there with other content is refused.",
             .handler = run_bundle_unpack,
             .arguments = {{.name = "ARCHIVE", .kind = ValueKind::kFile, .summary = "a .tar.zst made by pack"}},
             .options = {{.name = "into",
                          .kind = ValueKind::kFolder,
                          .value = "DIR",
                          .summary = "the folder of bundles",
                          .fallback = "/var/lib/sluice/bundles"}},
             .examples = {{"sluice bundle unpack cubic-1.0.0.tar.zst", ""}},
             .exits = {{kConflict, "that version is there with other content"}}}}},
      {.name = "completion",
       .summary = "print a completion script",
       .description = "Write it where the shell looks for completions, or source it.",
       .handler = run_completion,
       .arguments =
           {{.name = "SHELL", .kind = ValueKind::kChoice, .summary = "bash, zsh or fish", .choices = {"bash", "zsh", "fish"}}},
       .examples = {{"source <(sluice completion bash)", "in this shell"}}},
      {.name = "version",
       .summary = "print the version",
       .description = "Of this program; `status` shows the agent's.",
       .handler = run_version,
       .examples = {{"sluice version --output json", ""}}},
  };
  return sluice;
}

void append(const Command& command, const std::string& prefix, std::vector<NamedCommand>& list) {
  for (const Command& sub : command.subcommands) {
    const std::string path = prefix.empty() ? std::string(sub.name) : prefix + " " + std::string(sub.name);
    list.push_back({path, &sub});
    append(sub, path, list);
  }
}

}  // namespace

const Command& root() {
  static const Command kRoot = make_root();
  return kRoot;
}

const std::vector<ExitStatus>& exit_statuses() {
  static const std::vector<ExitStatus> kStatuses = {
      {kOk, "done"},
      {kFailed, "failed; standard error says what, where, why and what to do"},
      {kUsage, "the command line is wrong"},
      {kDegraded, "done, but not all of it, or the host is degraded"},
      {kConflict, "refused: in use, or somebody else's"},
  };
  return kStatuses;
}

const std::vector<EnvironmentVariable>& environment_variables() {
  static const std::vector<EnvironmentVariable> kVariables = {
      {kSocketVariable, "the agent's socket, unless --socket or --instance says otherwise"},
      {"NO_COLOR", "when set and not empty, no colours"},
  };
  return kVariables;
}

const std::vector<File>& files() {
  static const std::vector<File> kFiles = {
      {"/run/sluice/agent.sock", "the agent's socket; of an instance: /run/sluice/NAME/agent.sock"},
      {"/var/lib/sluice", "the agent's state; of an instance: /var/lib/sluice/NAME"},
      {"/var/lib/sluice/sluiced.log", "output of an agent that `sluice up` started without systemd"},
      {"/sys/fs/bpf/sluice", "pinned programs, maps and links"},
  };
  return kFiles;
}

std::vector<NamedCommand> all_commands() {
  std::vector<NamedCommand> list;
  append(root(), "", list);
  return list;
}

}  // namespace sluice::cli
