// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The small values of a policy document: places, prefixes, targets, and their notation.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "base/strings.h"
#include "policy/document.h"

namespace sluice::policy {
namespace {

constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::uint32_t kMappedBits = 96;

bool part_matches(std::string_view pattern, std::string_view part) {
  return pattern.empty() || pattern == "*" || pattern == part;
}

}  // namespace

std::string Place::text() const {
  std::string out = region;
  if (!datacenter.empty()) out += "/" + datacenter;
  if (!rack.empty()) out += "/" + rack;
  return out;
}

bool Prefix::ipv4() const { return length >= kMappedBits && std::equal(kMapped.begin(), kMapped.end(), addr.begin()); }

Prefix Prefix::network() const {
  Prefix out = *this;
  for (std::uint32_t byte = 0; byte < 16; ++byte) {
    std::uint32_t kept = length > byte * 8 ? std::min(length - byte * 8, 8u) : 0;
    out.addr[byte] &= static_cast<std::uint8_t>(0xff00 >> kept);
  }
  return out;
}

bool Prefix::contains(const Prefix& other) const {
  if (length > other.length || ipv4() != other.ipv4()) return false;
  Prefix cut = other;
  cut.length = length;
  return cut.network().addr == network().addr;
}

std::string Prefix::text() const {
  char buffer[INET6_ADDRSTRLEN];
  if (ipv4()) {
    inet_ntop(AF_INET, addr.data() + 12, buffer, sizeof buffer);
    return fmt::format("{}/{}", buffer, length - kMappedBits);
  }
  inet_ntop(AF_INET6, addr.data(), buffer, sizeof buffer);
  return fmt::format("{}/{}", buffer, length);
}

Result<Prefix> parse_prefix(std::string_view text) {
  auto refuse = [&](std::string_view why) {
    return fail(fail(Code::kInvalid, "'{}' is not an address prefix: {}", text.substr(0, 60), why)
                    .value()
                    .fix("write ADDRESS/LENGTH, such as 10.1.0.0/16 or 2001:db8::/32"));
  };
  auto slash = text.find('/');
  std::string address(text.substr(0, std::min(slash, text.size())));
  Prefix prefix;
  std::uint32_t bits = 0;
  std::uint32_t offset = 0;
  if (inet_pton(AF_INET, address.c_str(), prefix.addr.data() + 12) == 1) {
    std::copy(kMapped.begin(), kMapped.end(), prefix.addr.begin());
    bits = 32;
    offset = kMappedBits;
  } else if (inet_pton(AF_INET6, address.c_str(), prefix.addr.data()) == 1) {
    bits = 128;
  } else {
    return refuse("the address is neither IPv4 nor IPv6");
  }
  prefix.length = bits + offset;
  if (slash != std::string_view::npos) {
    auto length = parse_int<std::uint32_t>(text.substr(slash + 1));
    if (!length || *length > bits) return refuse(fmt::format("the length must be a number from 0 to {}", bits));
    prefix.length = *length + offset;
  }
  return prefix;
}

std::string_view locality_name(sl_locality locality) {
  return locality < SL_LOCALITY_COUNT ? kLocalityWords[locality] : std::string_view("?");
}

std::optional<sl_locality> locality_from_name(std::string_view name) {
  auto it = std::find(kLocalityWords.begin(), kLocalityWords.end(), name);
  if (it == kLocalityWords.end()) return std::nullopt;
  return static_cast<sl_locality>(it - kLocalityWords.begin());
}

sl_locality locality_of(const Place& own, const Place& remote, bool external) {
  if (external) return SL_LOCALITY_EXTERNAL;
  if (remote.empty()) return SL_LOCALITY_UNKNOWN;
  if (remote.region != own.region) return SL_LOCALITY_CROSS_REGION;
  // A part that one side does not give is not known to be equal.
  if (remote.datacenter.empty() || remote.datacenter != own.datacenter) return SL_LOCALITY_INTRA_REGION;
  if (remote.rack.empty() || remote.rack != own.rack) return SL_LOCALITY_INTRA_DC;
  return SL_LOCALITY_INTRA_RACK;
}

bool PlacePattern::matches(const Place& place) const {
  return !place.empty() && part_matches(parts.region, place.region) && part_matches(parts.datacenter, place.datacenter) &&
         part_matches(parts.rack, place.rack);
}

std::string PlacePattern::text() const { return parts.text(); }

std::string Match::text() const {
  std::string out;
  auto add = [&](std::string_view name, const std::string& values) {
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {}", name, values);
  };
  std::vector<std::string> words;
  for (std::size_t i = 0; i < SL_LOCALITY_COUNT; ++i)
    if (localities >> i & 1) words.emplace_back(kLocalityWords[i]);
  if (!words.empty()) add("locality", fmt::format("{}", fmt::join(words, "|")));
  words.clear();
  for (const PlacePattern& pattern : places) words.push_back(pattern.text());
  if (!words.empty()) add("place", fmt::format("{}", fmt::join(words, "|")));
  if (!services.empty()) add("service", fmt::format("{}", fmt::join(services, "|")));
  return out.empty() ? "anything" : out;
}

std::string Target::text() const { return native ? "kernel:" + name : name + "@" + version.text(); }

Result<Target> parse_target(std::string_view text) {
  Target target;
  if (text.starts_with("kernel:")) {
    target.native = true;
    target.name = text.substr(7);
    if (!bundle::valid_cca_name(target.name))
      return fail(fail(Code::kInvalid, "'{}' does not name a native CCA", text.substr(0, 60))
                      .value()
                      .fix("write kernel:NAME with 1 to 15 characters of A-Z, a-z, 0-9, '_', '.' and '-', such as kernel:bbr"));
    return target;
  }
  auto ref = bundle::parse_bundle_ref(text);
  if (!ref) {
    Error error = std::move(ref).error();
    error.remedy = "write NAME@VERSION for a bundle, such as cubic@1.0.0, or kernel:NAME for a native CCA";
    return fail(std::move(error));
  }
  target.name = ref->name;
  target.version = ref->version;
  return target;
}

std::string Rule::label(std::size_t index) const {
  return name.empty() ? fmt::format("rule {}", index + 1) : fmt::format("rule {} ({})", index + 1, name);
}

std::string Document::where(yaml::Mark mark) const {
  return mark.line > 0 ? fmt::format("{}:{}:{}", source, mark.line, mark.column) : source;
}

bool native_needs_ecn(std::string_view name) { return name == "dctcp"; }  // dctcp-reno, its fallback, does not

}  // namespace sluice::policy
