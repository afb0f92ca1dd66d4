// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The commands that need no agent: bundles on disk, completion scripts, the version.
#include <sluice/abi/types.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bundle/catalog.h"
#include "bundle/lint.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/render.h"
#include "cli/session.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

// Text for people, or the value: bundles are not part of the agent's API, so their JSON has its own names, those of
// bundle.yaml.
void reply(Session& session, const Json& value, std::string_view text) {
  switch (session.format()) {
    case Format::kTable:
      session.print(text);
      break;
    case Format::kJson:
      session.print(value.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
      break;
    case Format::kYaml:
      session.print(yaml_from_json(value.dump(-1, ' ', false, Json::error_handler_t::replace)));
      break;
  }
}

bool is_folder(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Result<bundle::Bundle> find_bundle(Session& session, const std::string& name) {
  if (is_folder(name)) return bundle::read_bundle(name);
  const bundle::Catalog all = bundle::Catalog::scan(session.bundle_path());
  const bundle::Bundle* found = nullptr;
  if (name.find('@') != std::string::npos) {
    SLUICE_TRY(ref, bundle::parse_bundle_ref(name));
    found = all.find(ref.name, ref.version);
  } else {
    found = all.newest(name);
  }
  if (found != nullptr) return *found;
  Error error;
  error.code = Code::kNotFound;
  error.what = fmt::format("no folder and no bundle '{}' in {}", name, fmt::join(session.bundle_path(), ":"));
  std::vector<std::string_view> names;
  for (const auto& one : all.list()) names.push_back(one.manifest.name);
  if (const std::string_view meant = nearest(name.substr(0, name.find('@')), names); !meant.empty())
    error.what += fmt::format("; did you mean '{}'?", meant);
  error.remedy = "`sluice bundle list` shows all; --bundle-path says where to look";
  return fail(std::move(error));
}

template <std::size_t N, class Enum>
std::string_view word(const std::array<std::string_view, N>& words, Enum value) {
  return words.at(static_cast<std::size_t>(value));
}

Json bundle_json(const bundle::Bundle& bundle) {
  const bundle::Manifest& manifest = bundle.manifest;
  Json value = {
      {"name", manifest.name},
      {"version", manifest.version.text()},
      {"class", word(bundle::kClassWords, manifest.bundle_class)},
      {"summary", manifest.summary},
      {"license", manifest.license},
      {"folder", bundle.folder},
      {"digest", bundle.digest},
      {"kernel_name", ""},
      {"transitional", manifest.transitional},
      {"objects", manifest.objects},
      {"kernel", {{"min", manifest.kernel_min.text()}, {"features", manifest.kernel_features}}},
      {"hooks", manifest.hooks},
      {"stages", manifest.stages},
      {"signals", {{"ecn", word(bundle::kEcnWords, manifest.ecn)}, {"delay", manifest.delay}, {"loss", manifest.loss}}},
      {"parameters", Json::array()},
      {"shared_maps", Json::array()},
      {"transitions", Json::array()}};
  if (manifest.bundle_class == bundle::Class::kCca)
    value["kernel_name"] = bundle::kernel_name(manifest.name, manifest.version, "");
  for (const auto& parameter : manifest.parameters)
    value["parameters"].push_back({{"name", parameter.name},
                                   {"type", word(bundle::kTypeWords, parameter.type)},
                                   {"unit", parameter.unit},
                                   {"min", parameter.min},
                                   {"max", parameter.max},
                                   {"default", parameter.default_value},
                                   {"when", word(bundle::kWhenWords, parameter.when)},
                                   {"summary", parameter.summary}});
  for (const auto& map : manifest.shared_maps)
    value["shared_maps"].push_back({{"name", map.name},
                                    {"schema", fmt::format("{}@{}", map.schema, map.schema_version)},
                                    {"access", word(bundle::kAccessWords, map.access)}});
  for (const auto& transition : manifest.transitions)
    value["transitions"].push_back({{"from", transition.from.text()}, {"to", transition.to.text()}});
  return value;
}

std::string bundle_text(const bundle::Bundle& bundle, const Style& style) {
  const bundle::Manifest& manifest = bundle.manifest;
  std::string out = fmt::format("{} ({}): {}\n", style.paint(Colour::kBold, printable(manifest.ref())),
                                word(bundle::kClassWords, manifest.bundle_class), printable(manifest.summary));
  const auto line = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) out += fmt::format("{:<14}{}\n", name, printable(value));
  };
  line("folder", bundle.folder);
  line("digest", bundle.digest);
  if (manifest.bundle_class == bundle::Class::kCca)
    line("kernel name", bundle::kernel_name(manifest.name, manifest.version, ""));
  line("kernel", fmt::format("{} or newer{}{}", manifest.kernel_min.text(), manifest.kernel_features.empty() ? "" : ", with ",
                             fmt::join(manifest.kernel_features, ", ")));
  line("hooks", fmt::format("{}", fmt::join(manifest.hooks, " ")));
  line("stages", fmt::format("{}", fmt::join(manifest.stages, " ")));
  if (manifest.bundle_class == bundle::Class::kCca)
    line("signals", fmt::format("{} ECN{}{}", word(bundle::kEcnWords, manifest.ecn), manifest.delay ? ", delay" : "",
                                manifest.loss ? ", loss" : ""));
  if (manifest.transitional) line("transitional", "yes: any connection may be moved to it");
  for (const auto& map : manifest.shared_maps)
    line("shared map",
         fmt::format("{} {}@{} {}", map.name, map.schema, map.schema_version, word(bundle::kAccessWords, map.access)));
  for (const auto& transition : manifest.transitions)
    line("transition", fmt::format("from {} to {}", transition.from.text(), transition.to.text()));
  Table table(style, {{"PARAMETER"}, {"DEFAULT", true}, {"RANGE"}, {"WHEN"}, {"MEANING", false, true}});
  for (const auto& parameter : manifest.parameters)
    table.add({parameter.name, bundle::format_parameter(parameter, parameter.default_value), bundle::range_text(parameter),
               std::string(word(bundle::kWhenWords, parameter.when)), parameter.summary});
  return table.empty() ? out : out + "\n" + table.flush();
}

}  // namespace

Result<int> run_bundle_lint(Session& session) {
  Json list = Json::array();
  std::string text;
  std::uint64_t errors = 0, warnings = 0;
  for (const std::string& folder : session.call().list("DIR")) {
    SLUICE_TRY(manifest, bundle::read_manifest(folder + "/bundle.yaml"));
    for (const bundle::Finding& finding : bundle::lint(manifest, folder)) {
      const std::string_view severity = bundle::severity_name(finding.severity);
      errors += finding.severity == bundle::Severity::kError ? 1 : 0;
      warnings += finding.severity == bundle::Severity::kWarning ? 1 : 0;
      list.push_back({{"bundle", manifest.ref()},
                      {"rule", finding.rule},
                      {"severity", severity},
                      {"where", finding.where},
                      {"what", finding.what},
                      {"remedy", finding.remedy}});
      const Colour colour = finding.severity == bundle::Severity::kError     ? Colour::kRed
                            : finding.severity == bundle::Severity::kWarning ? Colour::kYellow
                                                                             : Colour::kCyan;
      text += fmt::format("{}: {} {} [{}]\n", printable(finding.where),
                          session.style().paint(colour, fmt::format("{}:", severity)), printable(finding.what), finding.rule);
      if (!finding.remedy.empty())
        text += fmt::format("  {} {}\n", session.style().paint(Colour::kCyan, "fix:"), printable(finding.remedy));
    }
  }
  reply(session, Json{{"findings", list}}, text);
  if (session.format() == Format::kTable)
    session.note(fmt::format("{}, {}\n", plural(errors, "error"), plural(warnings, "warning")));
  return errors == 0 ? kOk : kFailed;
}

Result<int> run_bundle_show(Session& session) {
  SLUICE_TRY(found, find_bundle(session, session.call().text("BUNDLE")));
  reply(session, bundle_json(found), bundle_text(found, session.style()));
  return kOk;
}

Result<int> run_bundle_pack(Session& session) {
  SLUICE_TRY(found, bundle::read_bundle(session.call().text("DIR")));
  std::string archive = session.call().text("file");
  if (archive.empty()) archive = fmt::format("{}-{}.tar.zst", found.manifest.name, found.manifest.version.text());
  SLUICE_CHECK(bundle::pack(found.folder, archive));
  reply(session, Json{{"bundle", found.manifest.ref()}, {"archive", archive}, {"digest", found.digest}},
        fmt::format("{} packed into {}\n", found.manifest.ref(), printable(archive)));
  return kOk;
}

Result<int> run_bundle_unpack(Session& session) {
  SLUICE_TRY(found, bundle::unpack(session.call().text("ARCHIVE"), session.call().text("into")));
  reply(session, bundle_json(found), fmt::format("{} unpacked into {}\n", found.manifest.ref(), printable(found.folder)));
  return kOk;
}

Result<int> run_bundle_list(Session& session) {
  const bundle::Catalog all = bundle::Catalog::scan(session.bundle_path());
  Json list = Json::array();
  Table table(session.style(),
              {{"NAME"}, {"VERSION"}, {"CLASS"}, {"KERNEL", true}, {"ECN"}, {"SUMMARY", false, true}, {"FOLDER", false, true}});
  for (const bundle::Bundle& one : all.list()) {
    const bundle::Manifest& manifest = one.manifest;
    list.push_back(bundle_json(one));
    table.add({manifest.name, manifest.version.text(), std::string(word(bundle::kClassWords, manifest.bundle_class)),
               manifest.kernel_min.text(),
               manifest.bundle_class == bundle::Class::kCca ? std::string(word(bundle::kEcnWords, manifest.ecn)) : "-",
               manifest.summary, one.folder});
  }
  reply(session, Json{{"bundles", list}}, table.flush());
  for (const Error& error : all.errors())
    session.env().err << render_error(error, session.verbose(), session.err_style()) << std::flush;
  if (list.empty() && session.format() == Format::kTable)
    session.note(fmt::format("no bundle in {}\n", fmt::join(session.bundle_path(), ":")));
  return all.errors().empty() ? kOk : kDegraded;
}

Result<int> run_completion(Session& session) {
  session.print(render_completion(session.call().text("SHELL")));
  return kOk;
}

Result<int> run_version(Session& session) {
  reply(session, Json{{"version", SLUICE_VERSION}, {"abi", SL_ABI}}, fmt::format("sluice {}\n", SLUICE_VERSION));
  return kOk;
}

}  // namespace sluice::cli
