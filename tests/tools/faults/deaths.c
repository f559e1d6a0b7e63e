/* A process that dies by SIGKILL at one of its changes to files below a folder: preload it, then call arm().
 *
 * Counted are write, pwrite, fsync, fdatasync, rename, unlink, ftruncate and mkdir, SQLite's among them, each below
 * the folder. mode 0 dies before the call, 1 in its middle (half of a write), 2 after it; number 0 only counts.
 * Whoever dies leaves an empty file beside the folder, named as it with .died.
 * With a journal, one line a call goes there: its number, name and path.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char root[4096];
static int number, mode, count, journal = -1;

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

void arm(const char *folder, int at, int how, const char *path) {
    snprintf(root, sizeof root, "%s", folder);
    number = at, mode = how, count = 0;
    journal = *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
}

static void die(void) {
    char mark[4200];
    snprintf(mark, sizeof mark, "%s.died", root);
    close(open(mark, O_WRONLY | O_CREAT, 0600));
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int due(const char *call, const char *path) {
    size_t length = strlen(root);
    if (!length || strncmp(path, root, length) || path[length] != '/') return 0;
    int here = __sync_add_and_fetch(&count, 1);
    if (journal >= 0) dprintf(journal, "%d %s %s\n", here, call, path + length + 1);
    return here == number;
}

static int due_fd(const char *call, int fd) {
    char link[64], path[4096];
    if (!*root || fd == journal) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, path, sizeof path - 1);
    if (got <= 0) return 0;
    path[got] = 0;
    return due(call, path);
}

#define AROUND(type, test, call) \
    int mine = test; \
    if (mine && mode == 0) die(); \
    type result = call; \
    if (mine) die(); \
    return result;

#define HALVED(type, test, half, call) \
    int mine = test; \
    if (mine && mode == 0) die(); \
    if (mine && mode == 1) { type part = half; (void)part; die(); } \
    type result = call; \
    if (mine) die(); \
    return result;

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    HALVED(ssize_t, due_fd("write", fd), real(fd, data, size / 2), real(fd, data, size))
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    HALVED(ssize_t, due_fd("pwrite", fd), real(fd, data, size / 2, at), real(fd, data, size, at))
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    HALVED(ssize_t, due_fd("pwrite", fd), real(fd, data, size / 2, at), real(fd, data, size, at))
}
int fsync(int fd) { REAL(fsync); AROUND(int, due_fd("fsync", fd), real(fd)) }
int fdatasync(int fd) { REAL(fdatasync); AROUND(int, due_fd("fdatasync", fd), real(fd)) }
int ftruncate(int fd, off_t size) { REAL(ftruncate); AROUND(int, due_fd("ftruncate", fd), real(fd, size)) }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); AROUND(int, due_fd("ftruncate", fd), real(fd, size)) }
int rename(const char *from, const char *to) { REAL(rename); AROUND(int, due("rename", to), real(from, to)) }
int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat);
    AROUND(int, due("rename", to), real(a, from, b, to))
}
int unlink(const char *path) { REAL(unlink); AROUND(int, due("unlink", path), real(path)) }
int unlinkat(int folder, const char *path, int how) {
    REAL(unlinkat);
    AROUND(int, *path == '/' ? due("unlink", path) : due_fd("unlink in", folder), real(folder, path, how))
}
int mkdir(const char *path, mode_t how) { REAL(mkdir); AROUND(int, due("mkdir", path), real(path, how)) }
