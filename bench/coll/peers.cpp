// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "coll/peers.h"

#include <arpa/inet.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "agent.h"

namespace sluice::bench {
namespace {

constexpr test::Millis kPatience(600'000);

std::string text_of(const coll::Address& address) {
  char text[INET_ADDRSTRLEN];
  return ::inet_ntop(AF_INET, &address.ip[12], text, sizeof text);
}

Status write_program(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  if (::chmod(path.c_str(), 0755) != 0) return fail_errno(errno, "cannot write {}", path);
  return {};
}

Result<std::vector<Timing>> timings_of(const std::string& text, std::size_t count) {
  std::vector<Timing> timings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{")) continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded()) return fail(Code::kInternal, "cannot read '{}'", line);
    timings.push_back({json["seconds"].get<std::vector<double>>(), json["busy_seconds"], json["wrong"]});
  }
  if (timings.size() != count) return fail(Code::kInternal, "{} results for {} calls:\n{}", timings.size(), count, text);
  return timings;
}

// mpirun reaches other hosts by a program that it takes for ssh: this one enters namespaces.
Result<std::string> run_mpi(const std::string& dir, const Wires& wires, const Peer& peer,
                            const std::vector<std::string>& calls) {
  std::string hosts, script = "#!/bin/sh\ncase $1 in\n";
  for (unsigned i = 0; i < wires.spec().members; i++) {
    const std::string address = text_of(wires.member_address(i, 0));
    hosts += fmt::format("{}{}:1", i ? "," : "", address);
    script += fmt::format("{}) net={} name=m{} ;;\n", address, netns_path(wires.member(i).netns_fd()), i);
  }
  script += "esac\nshift\nexec nsenter --net=$net unshare --uts sh -c \"hostname $name; $*\"\n";
  const std::string enter = dir + "/enter";
  SLUICE_CHECK(write_program(enter, script));
  std::vector<std::string> argv = {"unshare", "--uts", "sh", "-c", "hostname m0; exec \"$@\"", "sh", "mpirun"};
  const std::string members = std::to_string(wires.spec().members);
  for (const std::string& word :
       {std::string("--allow-run-as-root"), std::string("-np"), members, std::string("--host"), hosts})
    argv.push_back(word);
  const std::vector<std::pair<std::string, std::string>> settings = {
      {"plm_rsh_agent", enter},       {"plm_rsh_no_tree_spawn", "1"}, {"btl", "tcp,self"},         {"pml", "ob1"},
      {"btl_tcp_if_include", "eth0"}, {"oob_tcp_if_include", "eth0"}, {"mpi_yield_when_idle", "1"}};
  for (const auto& [name, value] : settings) argv.insert(argv.end(), {"--mca", name, value});
  argv.insert(argv.end(), {"--bind-to", "none"});
  argv.insert(argv.end(), peer.arguments.begin(), peer.arguments.end());
  argv.push_back(program("bench_peer_mpi"));
  argv.insert(argv.end(), calls.begin(), calls.end());
  SLUICE_TRY(output, wires.member(0).run(argv, kPatience));
  if (output.status != 0) return fail(Code::kInternal, "mpirun failed with status {}:\n{}", output.status, output.text);
  return output.text;
}

Result<std::string> run_gloo(const std::string& dir, const Wires& wires, const Peer& peer,
                             const std::vector<std::string>& calls) {
  const std::string meet = dir + "/gloo";
  std::filesystem::remove_all(meet);
  std::filesystem::create_directory(meet);
  std::vector<test::Process> ranks;
  for (unsigned i = 0; i < wires.spec().members; i++) {
    std::vector<std::string> argv = {program("bench_peer_gloo"), std::to_string(i), std::to_string(wires.spec().members), meet,
                                     text_of(wires.member_address(i, 0))};
    argv.insert(argv.end(), peer.arguments.begin(), peer.arguments.end());
    argv.insert(argv.end(), calls.begin(), calls.end());
    SLUICE_TRY(rank, wires.member(i).spawn(argv, {.pipe_stdout = true, .merge_stderr = true}));
    ranks.push_back(std::move(rank));
  }
  std::string text;
  for (unsigned i = 0; i < ranks.size(); i++) {
    SLUICE_TRY(said, ranks[i].read_all(kPatience));
    SLUICE_TRY(status, ranks[i].wait(kPatience));
    if (status != 0) return fail(Code::kInternal, "rank {} failed with status {}:\n{}", i, status, said);
    if (i == 0) text = said;
  }
  return text;
}

}  // namespace

std::vector<Peer> peers(bool quick) {
  std::vector<Peer> all;
  if (std::filesystem::exists(program("bench_peer_mpi"))) {
    const std::vector<std::string> tuned = {"--mca", "coll_tuned_use_dynamic_rules", "1", "--mca",
                                            "coll_tuned_allreduce_algorithm"};
    const auto with = [&](const char* number) {
      auto arguments = tuned;
      arguments.emplace_back(number);
      return arguments;
    };
    all.push_back({"Open MPI", {}, true});
    if (!quick) {
      all.push_back({"Open MPI, recursive doubling", with("3"), true});
      all.push_back({"Open MPI, ring", with("4"), true});
      all.push_back({"Open MPI, segmented ring", with("5"), true});
      all.push_back({"Open MPI, Rabenseifner", with("6"), true});
    }
  }
  if (std::filesystem::exists(program("bench_peer_gloo"))) {
    all.push_back({"Gloo, ring", {"ring"}, false});
    if (!quick) all.push_back({"Gloo, bcube", {"bcube"}, false});
  }
  return all;
}

Result<std::vector<Timing>> run_peer(const std::string& dir, const Wires& wires, const Peer& peer,
                                     const std::vector<Calls>& calls) {
  std::vector<std::string> words;
  for (const Calls& each : calls) words.push_back(text_of(each));
  SLUICE_TRY(text, peer.mpi ? run_mpi(dir, wires, peer, words) : run_gloo(dir, wires, peer, words));
  return timings_of(text, calls.size());
}

}  // namespace sluice::bench
