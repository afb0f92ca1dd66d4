/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What owd.bpf.c counts in owd_counters (per-CPU array of u64): one for each packet that it sees. */
#ifndef OWD_COUNTERS_H
#define OWD_COUNTERS_H

enum owd_counter {
  OWD_COUNT_SAMPLE = 0,      /* a sample was written */
  OWD_COUNT_SCHEMA,          /* the agent has another version of sl.owd: nothing is looked at */
  OWD_COUNT_NOT_TCP,         /* or its header is not where it is looked for */
  OWD_COUNT_NO_ACK,          /* no acknowledgement, or one that opens or aborts a connection */
  OWD_COUNT_NO_TIMESTAMPS,   /* the connection has none, or its options are malformed */
  OWD_COUNT_NOT_ESTABLISHED, /* the socket is not in a state in which it sends */
  OWD_COUNT_NOTHING_NEW,     /* the rest: enum owd_verdict in delay.h */
  OWD_COUNT_CLOCK_UNPROVEN,
  OWD_COUNT_CLOCK_FOREIGN,
  OWD_COUNT_NO_MEMORY, /* no socket storage */
  OWD_COUNT_FORGOTTEN, /* samples taken off their sockets at the end; not packets */
  OWD_COUNTER_COUNT,
};

#endif
