/* Lets the time of day jump by hours, to and fro, twice a second. Loaded before libc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static int real(clockid_t id, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    return next(id, now);
}

static time_t jump(void) {
    static const time_t jumps[] = {0, 7200, -7200, 86400, -86400 * 30, 3};
    struct timespec steady;
    real(CLOCK_MONOTONIC, &steady);
    return jumps[(2 * steady.tv_sec + steady.tv_nsec / 500000000) % 6];
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = real(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
