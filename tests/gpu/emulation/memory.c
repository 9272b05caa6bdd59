/* Device memory: each piece ends at a guard page, is full of NaN at first, and after its release is never reached
 * again. Host code cannot touch it: its pages are open only while the device works. Where the processor has protection
 * keys that costs next to nothing; elsewhere the access to every page is changed. */
#include "emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096u
#define ALIGNMENT 256u /* what cuMemAlloc promises, and no more */
#define POISON 0xff    /* NaN as float, double and bfloat16, -1 as an integer */
#define CANARY 0xa5

/* One allocation; the list is never shortened, so that late uses can be told. */
struct piece {
    struct piece *next;
    char *map;          /* between the guards */
    uint64_t map_bytes; /* whole pages */
    char *data;         /* ends, but for the alignment, where the second guard begins */
    uint64_t bytes;
    uint64_t number;
    bool is_freed;
};

static struct piece *pieces;
static uint64_t piece_count, used_bytes;
static int open_depth;
static int key = -1; /* a protection key; below 0: there is none */

struct pinned {
    struct pinned *next;
    char *data;
    size_t bytes;
};
static struct pinned *pinned_pieces;

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

static uint64_t slack_of(const struct piece *piece)
{
    return (uint64_t)(piece->map + piece->map_bytes - piece->data) - piece->bytes;
}

static void set_all(bool is_open)
{
    if (key >= 0) {
        pkey_set(key, is_open ? 0 : PKEY_DISABLE_ACCESS);
        return;
    }
    for (const struct piece *piece = pieces; piece != NULL; piece = piece->next)
        if (!piece->is_freed &&
            mprotect(piece->map, piece->map_bytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
            emu_give_up("the system refuses to change the access to memory");
}

void emu_memory_open(void)
{
    if (open_depth++ == 0)
        set_all(true);
}

void emu_memory_close(void)
{
    if (--open_depth == 0)
        set_all(false);
}

/* Pages between two guards, out of reach; NULL: there are none. */
static char *new_pages(uint64_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *const all = mmap(NULL, bytes + 2 * PAGE_BYTES, PROT_NONE, flags, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    if (pieces == NULL)
        key = pkey_alloc(0, 0);
    if (key >= 0 && pkey_mprotect(all + PAGE_BYTES, bytes, PROT_READ | PROT_WRITE, key) != 0)
        emu_give_up("the system refuses memory with a protection key");
    return all + PAGE_BYTES;
}

void *emu_memory_new(uint64_t bytes)
{
    if (bytes == 0 || bytes > emu_settings()->memory_bytes || used_bytes + bytes > emu_settings()->memory_bytes)
        return NULL;
    const uint64_t map_bytes = round_up(round_up(bytes, ALIGNMENT), PAGE_BYTES);
    struct piece *const piece = calloc(1, sizeof *piece);
    char *const map = piece != NULL ? new_pages(map_bytes) : NULL;
    if (map == NULL) {
        free(piece);
        return NULL;
    }
    *piece = (struct piece){.next = pieces,
                            .map = map,
                            .map_bytes = map_bytes,
                            .data = map + map_bytes - round_up(bytes, ALIGNMENT),
                            .bytes = bytes,
                            .number = ++piece_count};
    pieces = piece;
    used_bytes += bytes;
    emu_memory_open();
    memset(piece->map, CANARY, (size_t)(piece->data - piece->map));
    memset(piece->data, POISON, bytes);
    memset(piece->data + bytes, CANARY, slack_of(piece));
    emu_memory_close();
    emu_count_made(EMU_MEMORY);
    return piece->data;
}

static void check_edges(const struct piece *piece)
{
    const uint64_t slack = slack_of(piece);
    for (uint64_t i = 0; i < slack; i++)
        if ((unsigned char)piece->data[piece->bytes + i] != CANARY) {
            emu_complain("memory %llu (%llu bytes) was written %llu bytes past its end",
                         (unsigned long long)piece->number, (unsigned long long)piece->bytes, (unsigned long long)i);
            return;
        }
    for (const char *at = piece->map; at < piece->data; at++)
        if ((unsigned char)*at != CANARY) {
            emu_complain("memory %llu (%llu bytes) was written %lld bytes before its start",
                         (unsigned long long)piece->number, (unsigned long long)piece->bytes,
                         (long long)(piece->data - at));
            return;
        }
}

int emu_memory_free(void *memory)
{
    for (struct piece *piece = pieces; piece != NULL; piece = piece->next) {
        if (piece->data != memory)
            continue;
        if (piece->is_freed) {
            emu_complain("memory %llu (%llu bytes) was freed twice", (unsigned long long)piece->number,
                         (unsigned long long)piece->bytes);
            return -1;
        }
        emu_memory_open();
        check_edges(piece);
        emu_memory_close();
        if (mmap(piece->map, piece->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                 0) == MAP_FAILED)
            emu_give_up("the system refuses to take memory back");
        piece->is_freed = true;
        used_bytes -= piece->bytes;
        emu_count_gone(EMU_MEMORY);
        return 0;
    }
    emu_complain("memory that was never allocated was freed");
    return -1;
}

bool emu_memory_holds(const void *memory, uint64_t bytes)
{
    const char *const at = memory;
    for (const struct piece *piece = pieces; piece != NULL; piece = piece->next)
        if (!piece->is_freed && at >= piece->data && bytes <= piece->bytes &&
            (uint64_t)(at - piece->data) <= piece->bytes - bytes)
            return true;
    return false;
}

uint64_t emu_memory_used(void)
{
    return used_bytes;
}

void emu_memory_name(const void *address, char *text, size_t size)
{
    const char *const at = address;
    for (const struct piece *piece = pieces; piece != NULL; piece = piece->next)
        if (at >= piece->map - PAGE_BYTES && at < piece->map + piece->map_bytes + PAGE_BYTES) {
            snprintf(text, size, "byte %lld of memory %llu (%llu bytes%s)", (long long)(at - piece->data),
                     (unsigned long long)piece->number, (unsigned long long)piece->bytes,
                     piece->is_freed ? ", freed" : "");
            return;
        }
    snprintf(text, size, "no memory of the device (%p)", address);
}

/* ---- pinned host memory ----------------------------------------------------------------------------------------- */

void *emu_pinned_new(size_t bytes)
{
    struct pinned *const piece = calloc(1, sizeof *piece);
    void *data = NULL;
    if (piece == NULL || bytes == 0 || posix_memalign(&data, PAGE_BYTES, bytes) != 0) {
        free(piece);
        return NULL;
    }
    memset(data, POISON, bytes);
    piece->data = data;
    piece->bytes = bytes;
    piece->next = pinned_pieces;
    pinned_pieces = piece;
    emu_count_made(EMU_PINNED);
    return data;
}

int emu_pinned_free(void *memory)
{
    for (struct pinned **at = &pinned_pieces; *at != NULL; at = &(*at)->next) {
        struct pinned *const piece = *at;
        if (piece->data != memory)
            continue;
        *at = piece->next;
        free(piece->data);
        free(piece);
        emu_count_gone(EMU_PINNED);
        return 0;
    }
    emu_complain("pinned memory that is not there was freed");
    return -1;
}

bool emu_is_pinned(const void *memory, uint64_t bytes)
{
    const char *const at = memory;
    for (const struct pinned *piece = pinned_pieces; piece != NULL; piece = piece->next)
        if (at >= piece->data && bytes <= piece->bytes && (uint64_t)(at - piece->data) <= piece->bytes - bytes)
            return true;
    return false;
}
