// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A struct_ops CCA of the tests' own (reno_like.bpf.c), registered under a name of their choice while the object lives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace sluice::test {

class TestCca {
 public:
  // At most 15 characters of [A-Za-z0-9_.]; the registry is the whole kernel's, so put the pid in: unique_cca_name().
  static Result<TestCca> register_as(const std::string& name);
  TestCca(TestCca&&) noexcept;
  TestCca& operator=(TestCca&&) noexcept;
  ~TestCca();

  std::uint32_t struct_ops_id() const;  // map id of what new connections get
  // Puts a second copy in place (link update): new connections get the new map id, old ones keep theirs.
  Status replace();

 private:
  struct State;
  explicit TestCca(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

std::string unique_cca_name();

}  // namespace sluice::test
