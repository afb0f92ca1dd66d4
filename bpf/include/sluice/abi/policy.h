/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The selection pipeline's maps: what the agent compiles a policy document into, and what BPF programs read.
 *
 *   remote address --sl_places--> place {id, class, locality}
 *   local address, port, cgroup --sl_sources, sl_services--> service id
 *   {service id, place class} --sl_rules--> verdict {CCA, parameter set, rule}
 *
 * A policy is one *generation*. Its tables are inner maps; the outer maps hold SL_SLOTS generations, generation g in slot
 * g % SL_SLOTS. The agent fills a slot that no reader uses, then publishes the generation by one aligned 8-byte store into
 * sl_config (mapped memory): every reader sees either the old policy or the new one, never parts of both.
 *
 * Places are many (each rack may be one), rules few: places that no rule can tell apart share a *place class*, so sl_rules
 * holds services x classes entries, not services x places.
 *
 * Writer of every table: the agent. Readers: sockops, iterators and every CCA on the SDK (bpf/include/sluice/bpf/select.bpf.h).
 * All integers are in host order unless a field says otherwise.
 */
#ifndef SLUICE_ABI_POLICY_H
#define SLUICE_ABI_POLICY_H

#include "types.h"

#define SL_SLOTS 2

/* How far a remote place is from this host's own place. Numbers grow with nearness; they are stored, never renumber them. */
enum sl_locality {
	SL_LOCALITY_UNKNOWN = 0,	/* no prefix of the topology holds the address */
	SL_LOCALITY_EXTERNAL = 1,	/* a prefix marked external does */
	SL_LOCALITY_CROSS_REGION = 2,
	SL_LOCALITY_INTRA_REGION = 3,
	SL_LOCALITY_INTRA_DC = 4,
	SL_LOCALITY_INTRA_RACK = 5,
	SL_LOCALITY_COUNT = 6,
};

/*
 * Key of sl_places and sl_sources (LPM trie). IPv4 is written as IPv4-mapped IPv6 (::ffff:a.b.c.d), its prefix length + 96, so
 * that one table serves both families and v4-mapped sockets need no special case.
 */
struct sl_prefix {
	__u32 prefix_len;	/* bits, 0..128 */
	__u8 addr[16];		/* network order */
};
SL_ASSERT_SIZE(struct sl_prefix, 20);

/* Value of sl_places. */
struct sl_place {
	__u32 place_id;		/* interned {region, datacenter, rack}; 0 = unknown; for reports only */
	__u16 place_class;	/* what sl_rules is keyed by; 0 = the class of unknown */
	__u8 locality;		/* enum sl_locality */
	__u8 pad;
};
SL_ASSERT_SIZE(struct sl_place, 8);

/* Value of sl_sources and sl_services: 0 = no service; a smaller id stands earlier in the document and wins. */
typedef __u32 sl_service_id;

enum sl_service_kind {
	SL_SERVICE_PORT = 1,	/* id = local port, host order */
	SL_SERVICE_CGROUP = 2,	/* id = cgroup2 id (inode number of its folder); descendants match too */
};

/* Key of sl_services (hash). */
struct sl_service_key {
	__u32 kind;		/* enum sl_service_kind */
	__u32 pad;
	__u64 id;
};
SL_ASSERT_SIZE(struct sl_service_key, 16);

/* Key of sl_rules (hash). */
struct sl_rule_key {
	__u32 service_id;	/* 0 = no service */
	__u32 place_class;	/* 0 = unknown place */
};
SL_ASSERT_SIZE(struct sl_rule_key, 8);

enum sl_verdict_flags {
	SL_VERDICT_NEEDS_ECN = 1 << 0,	/* the CCA asks for ECN in the SYN and must not run without it */
	SL_VERDICT_BUNDLE = 1 << 1,	/* cca is a bundle's kernel name (ours), not a native one */
	SL_VERDICT_RESPECT = 1 << 2,	/* a CCA that the application chose stays, unless it is ours */
	SL_VERDICT_REFUSE = 1 << 3,	/* its choice is refused, EPERM. Neither: it is taken for granted and has no effect */
};

/* Value of sl_rules: all that a connection gets. */
struct sl_verdict {
	char cca[SL_CCA_NAME_LEN];	/* TCP_CONGESTION name, NUL padded */
	char fallback[SL_CCA_NAME_LEN];	/* the transitional CCA: for a NEEDS_ECN cca on a connection without ECN; "" = none */
	__u32 rule_id;			/* 1-based position in the document; 0 = none */
	__u32 params;			/* index in the CCA's sl_params; 0 = the bundle's global set */
	__u32 fallback_params;
	__u16 flags;			/* enum sl_verdict_flags */
	__u16 init_cwnd_segments;	/* initial window set when established; 0 = leave the kernel's */
};
SL_ASSERT_SIZE(struct sl_verdict, 48);

/* Value of sl_generations (array of SL_SLOTS): what is the same for the whole generation. Written before it is published. */
enum sl_generation_flags {
	SL_GEN_SOURCES = 1 << 0,	/* sl_sources is not empty */
	SL_GEN_PORTS = 1 << 1,		/* sl_services holds ports */
	SL_GEN_CGROUPS = 1 << 2,	/* sl_services holds cgroups */
	SL_GEN_SELF_MIGRATE = 1 << 3,	/* CCAs on the SDK switch themselves at their next per-RTT point */
	SL_GEN_RESPECT = 1 << 4,	/* some verdict has SL_VERDICT_RESPECT: listeners keep what the application chose */
};
struct sl_generation {
	__u64 generation;		/* the generation these lines belong to: a reader that finds another one retries or leaves */
	__u32 flags;			/* enum sl_generation_flags */
	__u32 listener_params;
	char listener_cca[SL_CCA_NAME_LEN];	/* what a listener carries: transitional, never one that needs ECN; "" = leave */
};
SL_ASSERT_SIZE(struct sl_generation, 32);

/*
 * How the agent replaces a slot's generation: (1) sl_generations[slot].generation = 0, (2) the inner maps, (3) the whole entry
 * with the new number, (4) sl_config. Readers compare the number before and after their look-ups; each map-in-map update waits
 * for the readers of the table that it replaces.
 */

/* Value of sl_config (array of 1, BPF_F_MMAPABLE). */
struct sl_config {
	__u64 generation;	/* 0 = no policy: every program leaves sockets alone. Stored with one aligned store */
};
SL_ASSERT_SIZE(struct sl_config, 8);

/*
 * Value of sl_sock (BPF_MAP_TYPE_SK_STORAGE): what user space noted about one socket. No program creates it: what the policy says about
 * a socket is looked up when it is wanted, and learned state has its own way (sl_handover, sluice/abi/cca.h); both are cheaper than a
 * storage (docs/design/0004-no-storage-at-connect.md).
 */
enum sl_sock_flags {
	SL_SOCK_LOG = 1 << 0,	/* the logger selected this connection. A CCA on the SDK looks for it when the generation moves */
};
struct sl_sock {
	__u32 flags;		/* enum sl_sock_flags */
	__u32 pad;
};
SL_ASSERT_SIZE(struct sl_sock, 8);

/*
 * Value of sl_application (BPF_MAP_TYPE_SK_STORAGE): the CCA that the application asked for, with a setsockopt that was let through. It
 * counts while the socket runs it. Cloned to what a listener accepts.
 */
struct sl_application {
	char cca[SL_CCA_NAME_LEN];
};
SL_ASSERT_SIZE(struct sl_application, 16);

/* Key of sl_cca_ids (hash); its value is the id (__u32) of the struct_ops map registered under this name now. */
#define SL_CCA_IDS 256
struct sl_cca_name {
	char name[SL_CCA_NAME_LEN];	/* TCP_CONGESTION name, NUL padded */
};
SL_ASSERT_SIZE(struct sl_cca_name, 16);

/*
 * Value of sl_schemas (array): the contract of each shared map, checked by the loader for every object that uses it and by
 * programs at run time (one compare). Index: enum sl_schema.
 */
enum sl_schema {
	SL_SCHEMA_POLICY = 0,	/* sl_config, sl_generations and the tables */
	SL_SCHEMA_SOCK = 1,	/* sl_sock */
	SL_SCHEMA_HANDOVER = 2,	/* sl_handover */
	SL_SCHEMA_OWD = 3,	/* sl_owd: sluice/abi/owd.h */
	SL_SCHEMA_COUNT = 8,
};
#define SL_SCHEMA_POLICY_VERSION 1
#define SL_SCHEMA_SOCK_VERSION 1
#define SL_SCHEMA_HANDOVER_VERSION 1
struct sl_schema_entry {
	__u64 name_hash;	/* FNV-1a of "sl.policy", "sl.sock", ...; 0 = unused */
	__u32 version;
	__u32 value_size;	/* bytes of the map's value */
	__u64 btf_hash;		/* FNV-1a over names, types and offsets of the value's members */
};
SL_ASSERT_SIZE(struct sl_schema_entry, 24);

/* Counters of the policy programs: index into sl_policy_counters (per-CPU array of u64). */
enum sl_policy_counter {
	SL_POLICY_CONNECT = 0,		/* TCP_CONNECT_CB handled */
	SL_POLICY_ACTIVE,		/* ACTIVE_ESTABLISHED_CB handled */
	SL_POLICY_PASSIVE,		/* PASSIVE_ESTABLISHED_CB handled */
	SL_POLICY_LISTEN,		/* TCP_LISTEN_CB handled */
	SL_POLICY_NEEDS_ECN,		/* NEEDS_ECN asked for a request socket: for a SYN that offers ECN, and for each SYN-ACK */
	SL_POLICY_NEEDS_ECN_YES,	/* ... and answered 1 */
	SL_POLICY_SELECTED,		/* a CCA was set */
	SL_POLICY_KEPT,			/* the right CCA was already there */
	SL_POLICY_RECONCILED,		/* the policy moved during the handshake: ESTABLISHED set another CCA than CONNECT had */
	SL_POLICY_ECN_FALLBACK,		/* needs ECN, connection has none: transitional CCA taken */
	SL_POLICY_LPM_FALLBACK,		/* the resolver left nothing for this socket; the selector looked up itself */
	SL_POLICY_NO_GENERATION,	/* no policy published; left alone */
	SL_POLICY_NO_RULE,		/* no rule for {service, class}; left alone (the compiler should not let this happen) */
	SL_POLICY_NO_SOCK,		/* not a full TCP socket; left alone */
	SL_POLICY_SET_FAILED,		/* bpf_setsockopt(TCP_CONGESTION) refused */
	SL_POLICY_SCHEMA_MISMATCH,	/* a shared map has another version; left alone */
	SL_POLICY_MPTCP,		/* an MPTCP subflow; left alone */
	SL_POLICY_ITER_SEEN,
	SL_POLICY_ITER_MOVED,
	SL_POLICY_ITER_FAILED,
	SL_POLICY_SELF_MOVED,		/* a CCA switched itself (counted by the CCA) */
	SL_POLICY_SELF_FAILED,
	SL_POLICY_TORN,			/* the policy was replaced twice during one look-up; left alone */
	SL_POLICY_CGROUP_DEEP,		/* more than 16 ancestors; the ones above were not asked */
	SL_POLICY_ECN_NO_FALLBACK,	/* needs ECN, connection has none, and no fallback is named; left alone */
	SL_POLICY_IW_FAILED,		/* TCP_BPF_IW refused, e.g. data was sent in the SYN */
	SL_POLICY_USAGE_FULL,		/* sl_usage has no room; the socket is not counted */
	SL_POLICY_APPLICATION_NOTED,	/* an application's TCP_CONGESTION was let through and noted: no remote yet, or the rule respects it */
	SL_POLICY_APPLICATION_OVERRIDDEN,	/* ... was answered with success, and nothing was changed */
	SL_POLICY_APPLICATION_REFUSED,	/* ... was answered with EPERM */
	SL_POLICY_APPLICATION_KEPT,	/* sockops left the CCA that the application had chosen */
	SL_POLICY_NO_STAGE,		/* the dispatcher found no stage in sl_stages; left alone */
	SL_POLICY_ITER_ECN_FALLBACK,	/* sockets seen whose rule's CCA needs ECN, and that have none: they run the fallback */
	SL_POLICY_COUNTER_COUNT,
};

#endif
