/* Preloaded, it sets the wall clock of a process off by CLOCK_OFF_BY seconds. All other clocks are as they were. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long off_by;
static int (*right_clock)(clockid_t, struct timespec *);

/* Called once more by a forked process, which has an environment of its own. */
__attribute__((constructor)) void read_clock_off_by(void) {
    const char *seconds = getenv("CLOCK_OFF_BY");
    off_by = seconds ? atol(seconds) : 0;
    right_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = right_clock(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += off_by;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    (void)zone;
    *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
