/* Copyright 2026 The Dovetail Authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Nanoseconds that each thread has waited for the interpreter lock of CPython. To be preloaded.
 *
 * CPython keeps the lock's two mutexes in `_PyRuntime`. A thread that wants the lock waits on one
 * with pthread_cond_timedwait; a thread that was made to give it up waits on the other with
 * pthread_cond_wait until another has it. Waits on all other mutexes are passed on untimed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <time.h>

#define THREADS 4096

static struct {
    pthread_t thread;
    long long waited;
} entries[THREADS];
static int count;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
static char *begin_of_runtime, *end_of_runtime;
static __thread long long *own;

static void __attribute__((constructor)) find_runtime(void) {
    Dl_info info;
    ElfW(Sym) *symbol;
    begin_of_runtime = dlsym(RTLD_DEFAULT, "_PyRuntime");
    if (begin_of_runtime && dladdr1(begin_of_runtime, &info, (void **)&symbol, RTLD_DL_SYMENT))
        end_of_runtime = begin_of_runtime + symbol->st_size;
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int is_of_lock(pthread_mutex_t *mutex) {
    return (char *)mutex >= begin_of_runtime && (char *)mutex < end_of_runtime;
}

static void add(long long waited) {
    if (!own) {
        pthread_mutex_lock(&adding);
        if (count < THREADS) {
            entries[count].thread = pthread_self();
            own = &entries[count++].waited;
        }
        pthread_mutex_unlock(&adding);
    }
    if (own)
        *own += waited;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                           const struct timespec *until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next)
        next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (!is_of_lock(mutex))
        return next(cond, mutex, until);
    long long begin = now();
    int result = next(cond, mutex, until);
    add(now() - begin);
    return result;
}

int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *);
    if (!next)
        next = dlsym(RTLD_NEXT, "pthread_cond_wait");
    if (!is_of_lock(mutex))
        return next(cond, mutex);
    long long begin = now();
    int result = next(cond, mutex);
    add(now() - begin);
    return result;
}

/* Of a thread by its pthread_t, which is `threading.Thread.ident`. -1: no runtime was found. */
long long lock_waited_ns(unsigned long thread) {
    if (!end_of_runtime)
        return -1;
    for (int i = count - 1; i >= 0; i--)
        if ((unsigned long)entries[i].thread == thread)
            return entries[i].waited;
    return 0;
}
