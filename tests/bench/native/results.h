// What the load generator has counted and timed, and how it tells.
#pragma once
#include "common.h"
#include "histogram.h"

static struct histogram first_delta, opening, delta, mirror, replay, rejoin, accepted, refusal;
enum { SLICE_US = 100000, SLICES = 1200 };
static struct histogram *slices[SLICES]; // of the delta latencies, by send time
static struct {
  long completed, failed, deltas, delta_events, bytes, lost, repeated, disordered, foreign, resumes, resets, ended_204, replay_events,
      postponed; // requests that the server refused for a while, and that were sent again
  char first_failure[400];
} total;

enum { REFUSALS = 16 };
static struct {
  char reason[48]; // status and code
  long count, with_retry_after;
} refused[REFUSALS];

static void count_refusal(int status, const char *code, bool has_retry_after) {
  char reason[48];
  snprintf(reason, sizeof reason, "%d %s", status, code);
  int i = 0;
  while (i < REFUSALS - 1 && refused[i].count && strcmp(refused[i].reason, reason)) i++;
  snprintf(refused[i].reason, sizeof refused[i].reason, "%s", reason);
  refused[i].count++;
  refused[i].with_retry_after += has_retry_after;
}

static void print_refusals(void) {
  printf(",\"refused\":{");
  for (int i = 0; i < REFUSALS && refused[i].count; i++)
    printf("%s\"%s\":[%ld,%ld]", i ? "," : "", refused[i].reason, refused[i].count, refused[i].with_retry_after);
  printf("}");
}

// `sent` counts from the start of the run.
static void add_delta(int64_t sent, int64_t late) {
  histogram_add(&delta, late);
  int64_t slice = sent / SLICE_US;
  if (slice < 0 || slice >= SLICES) return;
  if (!slices[slice]) slices[slice] = checked(calloc(1, sizeof **slices));
  histogram_add(slices[slice], late);
}

static void print_steady(int64_t from, int64_t until) {
  struct histogram steady = {0};
  int64_t first = from / SLICE_US + 1, last = until / SLICE_US;
  for (int64_t slice = first; slice < last && slice < SLICES; slice++)
    if (slices[slice]) histogram_merge(&steady, slices[slice]);
  printf(",\"steady_seconds\":%.1f", last > first ? (last - first) * SLICE_US / 1e6 : 0.0);
  histogram_print("steady", &steady);
}

static void print_failure(void) {
  printf(",\"first_failure\":\"");
  for (const char *letter = total.first_failure; *letter; letter++)
    if (*letter >= ' ' && *letter <= '~') printf(*letter == '"' || *letter == '\\' ? "\\%c" : "%c", *letter);
  printf("\"");
}

static void print_results(double wall_seconds, int64_t steady_from, int64_t steady_until) {
  printf("{\"completed\":%ld,\"failed\":%ld,\"deltas\":%ld,\"delta_events\":%ld,\"bytes\":%ld", total.completed, total.failed,
         total.deltas, total.delta_events, total.bytes);
  printf(",\"lost\":%ld,\"repeated\":%ld,\"disordered\":%ld,\"foreign\":%ld", total.lost, total.repeated, total.disordered, total.foreign);
  printf(",\"resumes\":%ld,\"resets\":%ld,\"ended_204\":%ld,\"replay_events\":%ld,\"postponed\":%ld", total.resumes, total.resets,
         total.ended_204, total.replay_events, total.postponed);
  printf(",\"wall_seconds\":%.3f,\"cpu_seconds\":%.4f", wall_seconds, own_cpu_seconds());
  histogram_print("first_delta", &first_delta);
  histogram_print("opening", &opening);
  histogram_print("delta", &delta);
  histogram_print("mirror", &mirror);
  histogram_print("replay", &replay);
  histogram_print("rejoin", &rejoin);
  histogram_print("accepted", &accepted);
  histogram_print("refusal", &refusal);
  print_refusals();
  print_steady(steady_from, steady_until);
  print_failure();
  printf("}\n");
}
