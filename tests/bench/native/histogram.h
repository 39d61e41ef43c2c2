// Counts of times in microseconds, in bins about 3 % wide.
#pragma once
#include "common.h"

enum { BINS_PER_OCTAVE = 32, BINS = BINS_PER_OCTAVE * 28 };

struct histogram {
  uint32_t bins[BINS];
  uint64_t count;
  int64_t largest;
};

static void histogram_add(struct histogram *it, int64_t us) {
  if (us < 0) us = 0;
  int shift = us < BINS_PER_OCTAVE ? 0 : 63 - __builtin_clzll(us) - 5;
  int64_t bin = (int64_t)shift * BINS_PER_OCTAVE + (us >> shift);
  it->bins[bin < BINS ? bin : BINS - 1]++;
  it->count++;
  if (us > it->largest) it->largest = us;
}

static void histogram_merge(struct histogram *into, const struct histogram *from) {
  for (int i = 0; i < BINS; i++) into->bins[i] += from->bins[i];
  into->count += from->count;
  if (from->largest > into->largest) into->largest = from->largest;
}

static int64_t histogram_quantile(const struct histogram *it, double share) {
  uint64_t rank = share * (it->count - 1), passed = 0;
  for (int bin = 0; bin < BINS; bin++) {
    passed += it->bins[bin];
    if (passed <= rank) continue;
    int shift = bin < 2 * BINS_PER_OCTAVE ? 0 : bin / BINS_PER_OCTAVE - 1;
    int64_t us = (int64_t)(bin - shift * BINS_PER_OCTAVE) << shift;
    return us < it->largest ? us : it->largest;
  }
  return it->largest;
}

static void histogram_print(const char *name, const struct histogram *it) {
  if (it->count == 0) printf(",\"%s\":null", name);
  else
    printf(",\"%s\":{\"count\":%lu,\"p50\":%.3f,\"p99\":%.3f,\"max\":%.3f}", name, (unsigned long)it->count,
           histogram_quantile(it, 0.5) / 1000.0, histogram_quantile(it, 0.99) / 1000.0, it->largest / 1000.0);
}
