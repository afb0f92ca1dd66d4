/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Events of cca_trace.bpf.c. */
#ifndef SLUICE_TEST_CCA_TRACE_H
#define SLUICE_TEST_CCA_TRACE_H

enum cca_trace_kind { CCA_TRACE_ACK = 1, CCA_TRACE_STATE = 2 };

struct cca_trace_event {
  __u64 time_ns;
  __u32 kind;
  __u32 state;     /* before the event */
  __u32 new_state; /* of CCA_TRACE_STATE; ssthresh is the new state's already where the kernel asked the CCA */
  __u32 cwnd;
  __u32 ssthresh;
  __u32 prior_cwnd;
  __u32 delivered;
  __u32 delivered_ce;
  __u32 snd_una;
  __u32 snd_nxt;
  __u32 lost_out;
  __u32 srtt_us;
  __u32 private_word; /* what the test asked for of the CCA's private state */
  __u32 pad;
  char cca[16];
};

#endif
