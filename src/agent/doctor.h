// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// `sluice doctor`: what this kernel and host can and cannot do, why it matters, and how to mend it. Needs no running agent and
// changes nothing.
#pragma once

#include <string>

#include "wire/agent.pb.h"

namespace sluice::agent {

struct DoctorOptions {
  std::string proc_root = "/proc";
  std::string sys_root = "/sys";
};

v1::DoctorReply doctor_report(const DoctorOptions& options = {});

}  // namespace sluice::agent
