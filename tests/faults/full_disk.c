/* A disk that is full from the n-th write on, for a process that has this by LD_PRELOAD and then
 * calls full_disk: whatever needs space below a directory is counted, and fails with ENOSPC.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static char below[4096];  // nothing, until full_disk is called
static long first, last, count;

/* The writes first to last fail, counted from now. */
void full_disk(const char* directory, long from, long to) {
    strncpy(below, directory, sizeof below - 1);
    first = from;
    last = to;
    count = 0;
}

/* How many writes there were. */
long full_disk_count(void) {
    return count;
}

static int full_path(const char* path) {
    if (!below[0] || strncmp(path, below, strlen(below)) != 0) return 0;
    long number = __sync_add_and_fetch(&count, 1);
    return first <= number && number <= last;
}

static int full_file(int handle) {
    char link[64], path[4096];
    if (!below[0]) return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0) return 0;
    path[length] = 0;
    return full_path(path);
}

#define FAIL_IF(condition, result) \
    if (condition) {               \
        errno = ENOSPC;            \
        return result;             \
    }

ssize_t write(int handle, const void* data, size_t size) {
    REAL(write);
    FAIL_IF(full_file(handle), -1);
    return real(handle, data, size);
}

ssize_t pwrite64(int handle, const void* data, size_t size, off64_t offset) {
    REAL(pwrite64);
    FAIL_IF(full_file(handle), -1);
    return real(handle, data, size, offset);
}

ssize_t pwrite(int handle, const void* data, size_t size, off_t offset) {
    return pwrite64(handle, data, size, offset);
}

ssize_t writev(int handle, const struct iovec* parts, int count) {
    REAL(writev);
    FAIL_IF(full_file(handle), -1);
    return real(handle, parts, count);
}

ssize_t pwritev64(int handle, const struct iovec* parts, int count, off64_t offset) {
    REAL(pwritev64);
    FAIL_IF(full_file(handle), -1);
    return real(handle, parts, count, offset);
}

int fsync(int handle) {
    REAL(fsync);
    FAIL_IF(full_file(handle), -1);
    return real(handle);
}

int mkdir(const char* path, mode_t mode) {
    REAL(mkdir);
    FAIL_IF(access(path, F_OK) != 0 && full_path(path), -1);
    return real(path, mode);
}

int rename(const char* old, const char* new) {
    REAL(rename);
    FAIL_IF(full_path(new), -1);
    return real(old, new);
}

int open64(const char* path, int flags, ...) {
    REAL(open64);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    FAIL_IF((flags & O_CREAT) && access(path, F_OK) != 0 && full_path(path), -1);
    return real(path, flags, mode);
}
