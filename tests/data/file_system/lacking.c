/* A file system that lacks something, below the folder $LACKING_FOLDER; $LACKING says what: "flock", "posix" or "both"
   locks (ENOLCK, or $LACKING_ERRNO), or "shared" memory (ENODEV from mmap). Preloaded; everything else is the real one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

static int lacks(int fd, const char *a, const char *b) {
    const char *folder = getenv("LACKING_FOLDER"), *what = getenv("LACKING");
    char link[64], path[PATH_MAX];
    if (fd < 0 || !folder || !what || (strcmp(what, a) && strcmp(what, b))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return !strncmp(path, folder, strlen(folder));
}

static int refuse(void) {
    const char *number = getenv("LACKING_ERRNO");
    errno = number ? atoi(number) : ENOLCK;
    return -1;
}

int flock(int fd, int operation) {
    static int (*real)(int, int);
    if (!real) real = dlsym(RTLD_NEXT, "flock");
    return lacks(fd, "flock", "both") ? refuse() : real(fd, operation);
}

static int control(const char *name, int fd, int command, void *argument) {
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
    int locks = command == F_SETLK || command == F_SETLKW || command == F_GETLK;
#ifdef F_OFD_SETLK
    locks = locks || command == F_OFD_SETLK || command == F_OFD_SETLKW;
#endif
    return locks && lacks(fd, "posix", "both") ? refuse() : real(fd, command, argument);
}

int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return control("fcntl", fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return control("fcntl64", fd, command, argument);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "mmap");
    if ((flags & MAP_SHARED) && lacks(fd, "shared", "shared")) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return real(at, size, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(at, size, protection, flags, fd, offset);
}
