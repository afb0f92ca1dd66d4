// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Runs a fuzz target over the files of a corpus folder: a test for builds without libFuzzer.
#include <cstdint>
#include <cstdio>

#include "base/file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    auto names = sluice::list_dir(argv[i]);
    if (!names) {
      std::fprintf(stderr, "%s\n", names.error().message().c_str());
      return 1;
    }
    for (const std::string& name : *names) {
      auto text = sluice::read_file(std::string(argv[i]) + "/" + name);
      if (!text) {
        std::fprintf(stderr, "%s\n", text.error().message().c_str());
        return 1;
      }
      std::printf("%s\n", name.c_str());
      std::fflush(stdout);  // the name of the input that ends the process is the last line
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text->data()), text->size());
      ++count;
    }
  }
  std::printf("%d inputs\n", count);
  return count > 0 ? 0 : 1;
}
