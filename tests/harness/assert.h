// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// GoogleTest over Result<T>: ASSERT_OK(status), EXPECT_OK(status), ASSERT_VALUE(name, result): declares name or ends the test.
// must(result): its value, for set-up; ends the test with the error by an exception.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "base/result.h"

namespace sluice::test {

template <class T>
testing::AssertionResult is_ok(const Result<T>& result) {
  if (result) return testing::AssertionSuccess();
  const Error& error = result.error();
  return testing::AssertionFailure() << error.message() << (error.detail.empty() ? "" : "\n" + error.detail);
}

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message() + "\n" + result.error().detail);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace sluice::test

#define ASSERT_OK(...) ASSERT_TRUE(::sluice::test::is_ok(__VA_ARGS__))
#define EXPECT_OK(...) EXPECT_TRUE(::sluice::test::is_ok(__VA_ARGS__))
#define ASSERT_VALUE(name, ...)                                        \
  auto SLUICE_CONCAT(result_of_, name) = (__VA_ARGS__);                \
  ASSERT_TRUE(::sluice::test::is_ok(SLUICE_CONCAT(result_of_, name))); \
  auto name = std::move(*SLUICE_CONCAT(result_of_, name))
