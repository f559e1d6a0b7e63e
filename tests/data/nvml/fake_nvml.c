/* A stand-in for libnvidia-ml.so.1, as much of it as the tests need. What it says comes from the file named by
 * FAKE_NVML, read at every call, one card a line:   index uuid total used [state [pid:bytes ...]]
 * state is ok, lost, private (processes may not be asked) or mig (two slices, with half of the memory each). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct { int index; int slice; } Handle; /* slice -1: the whole card */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Rates;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } Process;
typedef struct { int found; char uuid[64]; unsigned long long total, used; char state[16]; int n; Process p[8]; } Row;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7,
       DRIVER = 9, LOST = 15 };

static int started = 0;
static Handle handles[16][3];

static Row row(int index) {
    Row r; memset(&r, 0, sizeof r);
    FILE *f = fopen(getenv("FAKE_NVML"), "r");
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        int i, used = 0; Row t; memset(&t, 0, sizeof t); strcpy(t.state, "ok");
        if (sscanf(line, "%d %63s %llu %llu %15s%n", &i, t.uuid, &t.total, &t.used, t.state, &used) < 4) continue;
        char *rest = used ? line + used : (char *)"";
        int step; unsigned int pid; unsigned long long bytes;
        while (t.n < 8 && sscanf(rest, " %u:%llu%n", &pid, &bytes, &step) == 2) {
            t.p[t.n].pid = pid; t.p[t.n].used = bytes; t.p[t.n].gi = t.p[t.n].ci = 0xFFFFFFFF; t.n++; rest += step;
        }
        if (i == index) { t.found = 1; r = t; }
    }
    if (f) fclose(f);
    return r;
}

static nvmlReturn_t check(Handle *h, Row *r) {
    if (!started) return UNINITIALIZED;
    *r = row(h->index);
    if (!r->found || !strcmp(r->state, "lost")) return LOST;
    if (h->slice >= 0) { r->total /= 2; r->used /= 2; sprintf(r->uuid, "MIG-%d-%d", h->index, h->slice); }
    return OK;
}

nvmlReturn_t nvmlInit_v2(void) { if (!getenv("FAKE_NVML")) return DRIVER; started = 1; return OK; }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return nvmlInit_v2(); }
nvmlReturn_t nvmlShutdown(void) { started = 0; return OK; }
const char *nvmlErrorString(nvmlReturn_t e) {
    return e == LOST ? "GPU is lost" : e == DRIVER ? "Driver Not Loaded" : e == NO_PERMISSION ? "Insufficient Permissions" : "Unknown Error";
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n) {
    if (!started) return UNINITIALIZED;
    for (*n = 0; *n < 16 && row(*n).found; (*n)++) {}
    return OK;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, Handle **h) {
    if (i >= 16) return INVALID;
    handles[i][0].index = i; handles[i][0].slice = -1; *h = &handles[i][0];
    return !strcmp(row(i).state, "lost") ? LOST : OK;
}
nvmlReturn_t nvmlDeviceGetMigMode(Handle *h, unsigned int *now, unsigned int *pending) {
    Row r; nvmlReturn_t e = check(h, &r); if (e) return e;
    *now = *pending = !strcmp(r.state, "mig"); return OK;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(Handle *h, unsigned int *n) { (void)h; *n = 7; return OK; }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(Handle *h, unsigned int i, Handle **out) {
    if (i > 1) return NOT_FOUND;
    handles[h->index][1 + i].index = h->index; handles[h->index][1 + i].slice = i; *out = &handles[h->index][1 + i];
    return OK;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(Handle *h, Memory *m) {
    Row r; nvmlReturn_t e = check(h, &r); if (e) return e;
    m->total = r.total; m->used = r.used; m->free = r.total - r.used; return OK;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(Handle *h, Rates *u) {
    Row r; nvmlReturn_t e = check(h, &r); if (e) return e;
    if (h->slice >= 0) return NOT_SUPPORTED; /* as on real MIG slices */
    u->gpu = 42; u->memory = 17; return OK;
}
nvmlReturn_t nvmlDeviceGetName(Handle *h, char *s, unsigned int n) { (void)h; snprintf(s, n, "Fake Card"); return OK; }
nvmlReturn_t nvmlDeviceGetUUID(Handle *h, char *s, unsigned int n) {
    Row r; nvmlReturn_t e = check(h, &r); if (e) return e; snprintf(s, n, "%s", r.uuid); return OK;
}
nvmlReturn_t nvmlDeviceGetTemperature(Handle *h, int sensor, unsigned int *t) { (void)h; (void)sensor; *t = 55; return OK; }
nvmlReturn_t nvmlDeviceGetPowerUsage(Handle *h, unsigned int *mw) { (void)h; *mw = 250500; return OK; }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(Handle *h, unsigned int *n, Process *p) {
    Row r; nvmlReturn_t e = check(h, &r); if (e) return e;
    if (!strcmp(r.state, "private")) return NO_PERMISSION;
    if (*n < (unsigned)r.n) { *n = r.n; return r.n ? SMALL : OK; }
    *n = r.n; memcpy(p, r.p, r.n * sizeof(Process)); return OK;
}
