/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * owd: measures the one-way delay of the connections of a cgroup and gives it to Sluice's CCAs through the shared map sl_owd. A
 * program of another team: it uses libbpf and Sluice's ABI headers, and finds the maps by their pins. README.md is its manual.
 *
 *   wait     until the agent has pinned sl_owd and written its contract to sl_schemas
 *   refuse   if that is another version or layout than this program was built for
 *   write    until a signal, until the agent takes its maps away (then wait again), or until it replaces the contract (then
 * end)
 *
 * It pins nothing and its link is a descriptor, so nothing of it outlives it, however it ends. The samples lie on the sockets,
 * in a map of the agent's; it removes them when it ends in good order, and otherwise they grow old and go with their sockets.
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sluice/abi/owd.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "counters.h"

#define LOOK_MS 250 /* how often it looks at the pins */
#define TEXT(x) TEXT_(x)
#define TEXT_(x) #x

/* The object file, OWD_OBJECT, as part of this program. */
__asm__(
    ".pushsection .rodata\n"
    ".balign 8\n"
    "owd_object: .incbin \"" OWD_OBJECT
    "\"\n"
    "owd_object_end:\n"
    ".popsection\n");
extern const char owd_object[], owd_object_end[];

static const char* const kCounters[OWD_COUNTER_COUNT] = {
    [OWD_COUNT_SAMPLE] = "samples",
    [OWD_COUNT_SCHEMA] = "other-contract",
    [OWD_COUNT_NOT_TCP] = "not-tcp",
    [OWD_COUNT_NO_ACK] = "no-ack",
    [OWD_COUNT_NO_TIMESTAMPS] = "no-timestamps",
    [OWD_COUNT_NOT_ESTABLISHED] = "not-established",
    [OWD_COUNT_NOTHING_NEW] = "nothing-new",
    [OWD_COUNT_CLOCK_UNPROVEN] = "clock-unproven",
    [OWD_COUNT_CLOCK_FOREIGN] = "clock-foreign",
    [OWD_COUNT_NO_MEMORY] = "no-memory",
    [OWD_COUNT_FORGOTTEN] = "removed",
};

enum outcome { WAIT, GO, REFUSED, FAILED, SIGNALLED };

struct options {
  const char* maps;
  const char* cgroup;
};

/* The agent's maps; -1 = not open. */
struct shared {
  int owd;
  int schemas;
};

struct producer {
  struct bpf_object* object;
  struct bpf_link* link;
};

static void say(FILE* to, const char* format, ...) {
  va_list arguments;

  va_start(arguments, format);
  fputs("owd: ", to);
  vfprintf(to, format, arguments);
  fputc('\n', to);
  fflush(to);
  va_end(arguments);
}

static enum outcome failed(const char* what, const char* where) {
  say(stderr, "%s %s: %s", what, where, strerror(errno));
  return FAILED;
}

static void close_shared(struct shared* maps) {
  if (maps->owd >= 0) close(maps->owd);
  if (maps->schemas >= 0) close(maps->schemas);
  maps->owd = maps->schemas = -1;
}

/* -1 with errno; ENOENT if there is no such pin. */
static int open_pin(const struct options* options, const char* name) {
  char path[512];

  if (snprintf(path, sizeof(path), "%s/%s", options->maps, name) >= (int)sizeof(path)) {
    errno = ENAMETOOLONG;
    return -1;
  }
  return bpf_obj_get(path);
}

/* GO: the contract is ours. WAIT: the agent has not written it yet. */
static enum outcome check_contract(const struct options* options, const struct shared* maps) {
  struct sl_schema_entry entry;
  __u32 key = SL_SCHEMA_OWD;

  if (bpf_map_lookup_elem(maps->schemas, &key, &entry)) return failed("cannot read sl_schemas in", options->maps);
  if (!entry.name_hash) return WAIT;
  if (entry.version == SL_SCHEMA_OWD_VERSION && entry.btf_hash == SL_SCHEMA_OWD_HASH &&
      entry.value_size == sizeof(struct sl_owd))
    return GO;
  say(stderr,
      "the agent has %s@%u, layout %016" PRIx64 ", and this program writes %s@%u, layout %016" PRIx64
      " (sl_schemas in %s): build it with the sluice/abi/owd.h of that agent's release",
      SL_SCHEMA_OWD_NAME, entry.version, (uint64_t)entry.btf_hash, SL_SCHEMA_OWD_NAME, SL_SCHEMA_OWD_VERSION,
      (uint64_t)SL_SCHEMA_OWD_HASH, options->maps);
  return REFUSED;
}

/* Opens the agent's maps if they are there and say what we were built for. */
static enum outcome open_shared(const struct options* options, struct shared* maps) {
  enum outcome outcome = WAIT;

  maps->schemas = open_pin(options, "sl_schemas");
  maps->owd = maps->schemas < 0 ? -1 : open_pin(options, "sl_owd");
  if (maps->owd >= 0)
    outcome = check_contract(options, maps);
  else if (errno != ENOENT)
    outcome = failed("cannot open the maps in", options->maps);
  if (outcome != GO) close_shared(maps);
  return outcome;
}

/* Are the maps we write to still those that are pinned? */
static bool still_pinned(const struct options* options, const struct shared* maps) {
  struct bpf_map_info ours = {0}, theirs = {0};
  __u32 ours_size = sizeof(ours), theirs_size = sizeof(theirs);
  int fd = open_pin(options, "sl_owd");
  bool same = fd >= 0 && !bpf_map_get_info_by_fd(maps->owd, &ours, &ours_size) &&
              !bpf_map_get_info_by_fd(fd, &theirs, &theirs_size) && ours.id == theirs.id;

  if (fd >= 0) close(fd);
  return same;
}

static enum outcome reuse(struct bpf_object* object, const char* name, int fd) {
  struct bpf_map* map = bpf_object__find_map_by_name(object, name);

  if (!map || bpf_map__reuse_fd(map, fd)) return failed("another layout than expected: shared map", name);
  return GO;
}

static enum outcome start(const struct options* options, const struct shared* maps, struct producer* producer) {
  const struct bpf_program* program;
  int cgroup;

  producer->object = bpf_object__open_mem(owd_object, (size_t)(owd_object_end - owd_object), NULL);
  if (!producer->object) return failed("cannot open", "the built-in object");
  if (reuse(producer->object, "sl_owd", maps->owd) != GO || reuse(producer->object, "sl_schemas", maps->schemas) != GO)
    return FAILED;
  if (bpf_object__load(producer->object)) return failed("cannot load", "the built-in object");

  cgroup = open(options->cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (cgroup < 0) return failed("cannot open cgroup", options->cgroup);
  program = bpf_object__find_program_by_name(producer->object, "owd_ingress");
  producer->link = bpf_program__attach_cgroup(program, cgroup);
  close(cgroup);
  return producer->link ? GO : failed("cannot attach to cgroup", options->cgroup);
}

/* Takes our samples off their sockets. Best effort: what cannot be removed grows old. */
static void forget(const struct producer* producer) {
  struct bpf_link* link = bpf_program__attach_iter(bpf_object__find_program_by_name(producer->object, "owd_forget"), NULL);
  int walk = link ? bpf_iter_create(bpf_link__fd(link)) : -1;
  char nothing[64];

  /* The program writes nothing, so one read walks all files; EAGAIN: a million of them, go on. */
  while (walk >= 0 && read(walk, nothing, sizeof(nothing)) < 0 && (errno == EAGAIN || errno == EINTR)) {
  }
  if (walk >= 0)
    close(walk);
  else
    failed("cannot remove the samples from", "their sockets");
  bpf_link__destroy(link);
}

static void print_counters(const struct producer* producer) {
  int fd = bpf_object__find_map_fd_by_name(producer->object, "owd_counters");
  int cpus = libbpf_num_possible_cpus();
  uint64_t* values = cpus > 0 ? calloc((size_t)cpus, sizeof(*values)) : NULL;

  for (__u32 i = 0; values && i < OWD_COUNTER_COUNT; i++) {
    uint64_t sum = 0;

    if (bpf_map_lookup_elem(fd, &i, values)) break;
    for (int cpu = 0; cpu < cpus; cpu++) sum += values[cpu];
    if (sum) say(stdout, "%s %" PRIu64, kCounters[i], sum);
  }
  free(values);
}

static void stop(struct producer* producer) {
  bool ran = producer->link != NULL;

  bpf_link__destroy(producer->link);
  if (ran) {
    forget(producer);
    print_counters(producer);
  }
  bpf_object__close(producer->object);
  *producer = (struct producer){0};
}

/* Until it is time to look again, or a signal came. */
static enum outcome pause_for(int signals, int timer) {
  struct pollfd fds[2] = {{signals, POLLIN, 0}, {timer, POLLIN, 0}};
  uint64_t ticks;

  if (poll(fds, 2, -1) < 0 && errno != EINTR) return failed("cannot wait for", "signals");
  if (fds[0].revents) return SIGNALLED;
  if (fds[1].revents && read(timer, &ticks, sizeof(ticks)) < 0) return failed("cannot read", "the timer");
  return GO;
}

/* Writes samples until something ends it. */
static enum outcome produce(const struct options* options, const struct shared* maps, int signals, int timer) {
  struct producer producer = {0};
  enum outcome outcome = start(options, maps, &producer);

  if (outcome == GO)
    say(stdout, "writing " SL_SCHEMA_OWD_NAME "@" TEXT(SL_SCHEMA_OWD_VERSION) " for the connections of %s", options->cgroup);
  while (outcome == GO) {
    outcome = pause_for(signals, timer);
    if (outcome != GO) break;
    if (!still_pinned(options, maps))
      outcome = WAIT;
    else
      outcome = check_contract(options, maps); /* WAIT: the agent is writing it anew */
  }
  stop(&producer);
  return outcome;
}

static enum outcome run(const struct options* options, int signals, int timer) {
  struct shared maps = {-1, -1};
  bool told = false;

  for (;;) {
    enum outcome outcome = open_shared(options, &maps);

    if (outcome == GO) {
      told = false;
      outcome = produce(options, &maps, signals, timer);
      close_shared(&maps);
    }
    if (outcome != WAIT) return outcome;
    if (!told) say(stdout, "waiting for an agent with " SL_SCHEMA_OWD_NAME " (pins in %s)", options->maps);
    told = true;
    outcome = pause_for(signals, timer);
    if (outcome != GO) return outcome;
  }
}

static void usage(FILE* to) {
  fputs(
      "usage: owd --cgroup DIR [--maps DIR]\n"
      "\n"
      "Measures the one-way delay of the data that TCP connections of a cgroup send, and writes it to Sluice's shared map sl_owd\n"
      "until it gets SIGTERM or SIGINT.\n"
      "\n"
      "  --cgroup DIR   folder in the cgroup2 mount; its descendants count\n"
      "  --maps DIR     where the agent has pinned its maps [/sys/fs/bpf/sluice/v" TEXT(SL_ABI) "/default/policy/maps]\n"
      "\n"
      "Exit status: 0 ended by a signal, 1 failed or refused, 2 wrong usage.\n",
      to);
}

int main(int argc, char** argv) {
  struct options options = {"/sys/fs/bpf/sluice/v" TEXT(SL_ABI) "/default/policy/maps", NULL};
  const struct itimerspec every = {{0, LOOK_MS * 1000000L}, {0, LOOK_MS * 1000000L}};
  sigset_t ending;
  int signals, timer;

  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--help")) {
      usage(stdout);
      return 0;
    }
    if (!strcmp(argv[i], "--maps") && i + 1 < argc) {
      options.maps = argv[++i];
    } else if (!strcmp(argv[i], "--cgroup") && i + 1 < argc) {
      options.cgroup = argv[++i];
    } else {
      usage(stderr);
      return 2;
    }
  }
  if (!options.cgroup) {
    usage(stderr);
    return 2;
  }

  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, NULL);
  signals = signalfd(-1, &ending, SFD_CLOEXEC);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (signals < 0 || timer < 0 || timerfd_settime(timer, 0, &every, NULL)) {
    failed("cannot set up", "signals and timer");
    return 1;
  }
  return run(&options, signals, timer) == SIGNALLED ? 0 : 1;
}
