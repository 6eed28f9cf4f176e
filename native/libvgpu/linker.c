/* The dynamic linker's doors to the driver beside dlsym. See linker.h.
 *
 * All of them may be called before any constructor ran, and by sanitizers before memory can be allocated: nothing here waits or
 * allocates, and what runs on the way to the real function is not instrumented.
 */
#include "linker.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "guard.h"
#include "intercept.h"

/* In the C library's own words, so that no stand-in of a sanitizer is called. */
BEFORE_SANITIZERS static bool same(const char *one, const char *other) {
    while (*one != '\0' && *one == *other) {
        one++;
        other++;
    }
    return *one == *other;
}

BEFORE_SANITIZERS static const char *file_name(const char *path) {
    const char *name = path;
    for (; *path != '\0'; path++) {
        if (*path == '/') {
            name = path + 1;
        }
    }
    return name;
}

/* The GNU hash table of an object: every glibc since 2006 has one. */
struct hash_table {
    uint32_t bucket_count, first_symbol, bloom_size, bloom_shift;
    uint64_t bloom[];
};

/* glibc has made addresses of these; a linker that has not leaves offsets, which are below the object. */
BEFORE_SANITIZERS static uintptr_t place_of(uintptr_t base, const ElfW(Dyn) *entry) {
    return entry->d_un.d_ptr < base ? entry->d_un.d_ptr + base : entry->d_un.d_ptr;
}

BEFORE_SANITIZERS static void *search(const struct link_map *map, const char *wanted) {
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const struct hash_table *table = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        uintptr_t place = place_of(map->l_addr, entry);
        if (entry->d_tag == DT_SYMTAB) {
            symbols = (const ElfW(Sym) *)place;
        } else if (entry->d_tag == DT_STRTAB) {
            strings = (const char *)place;
        } else if (entry->d_tag == DT_GNU_HASH) {
            table = (const struct hash_table *)place;
        }
    }
    if (symbols == NULL || strings == NULL || table == NULL || table->bucket_count == 0) {
        return NULL;
    }
    uint32_t hash = 5381;
    for (const char *letter = wanted; *letter != '\0'; letter++) {
        hash = hash * 33 + (unsigned char)*letter;
    }
    const uint32_t *buckets = (const uint32_t *)(table->bloom + table->bloom_size);
    const uint32_t *chain = buckets + table->bucket_count;
    uint32_t index = buckets[hash % table->bucket_count];
    if (index < table->first_symbol) {
        return NULL;
    }
    for (;; index++) {
        uint32_t found = chain[index - table->first_symbol];
        const ElfW(Sym) *symbol = &symbols[index];
        if ((found | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && same(strings + symbol->st_name, wanted)) {
            return (void *)(map->l_addr + symbol->st_value);
        }
        if (found & 1) {
            return NULL;
        }
    }
}

/* Where the C library has a function; with `place`, whether that is there. NULL if not. */
BEFORE_SANITIZERS static void *in_c_library(const char *wanted, const void *place) {
    for (const struct link_map *map = _r_debug.r_map; map != NULL; map = map->l_next) {
        const char *name = map->l_name != NULL ? file_name(map->l_name) : "";
        if (same(name, "libc.so.6") || same(name, "libdl.so.2")) {
            void *found = search(map, wanted);
            if (found != NULL && (place == NULL || found == place)) {
                return found;
            }
        }
    }
    return NULL;
}

BEFORE_SANITIZERS dlvsym_function linker_real_dlvsym(void) {
    static _Atomic(dlvsym_function) known;
    dlvsym_function real_one = atomic_load_explicit(&known, memory_order_acquire);
    if (real_one == NULL) {
        real_one = (dlvsym_function)in_c_library("dlvsym", NULL);
        atomic_store_explicit(&known, real_one, memory_order_release);
    }
    return real_one;
}

/* Of whoever comes after us, as an interposer does. */
BEFORE_SANITIZERS static void *next_of(_Atomic(void *) *known, const char *name) {
    void *next = atomic_load_explicit(known, memory_order_acquire);
    if (next == NULL) {
        next = intercept_real_dlsym(RTLD_NEXT, name);
        atomic_store_explicit(known, next, memory_order_release);
    }
    return next;
}

static bool is_called(uintptr_t base, const ElfW(Dyn) *dynamic, const char *name) {
    const char *strings = NULL;
    const ElfW(Dyn) *own = NULL;
    for (const ElfW(Dyn) *entry = dynamic; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB) {
            strings = (const char *)place_of(base, entry);
        } else if (entry->d_tag == DT_SONAME) {
            own = entry;
        }
    }
    return strings != NULL && own != NULL && same(strings + own->d_un.d_val, name);
}

/* A loaded file, found by an address in it. */
struct loaded {
    uintptr_t address;
    const char *name; /* NULL: any */
    const ElfW(Dyn) *dynamic;
    bool called; /* the file has that name for itself */
};

/* Called under the linker's lock, so that no other thread unloads the file meanwhile. */
static int is_it(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct loaded *loaded = data;
    const ElfW(Dyn) *dynamic = NULL;
    bool inside = false;
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[at];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && loaded->address - begin < part->p_memsz) {
            inside = true;
        } else if (part->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)begin;
        }
    }
    if (inside) {
        loaded->dynamic = dynamic;
        loaded->called = loaded->name != NULL && is_called(info->dlpi_addr, dynamic, loaded->name);
    }
    return inside;
}

bool linker_lies_in(const void *address, const char *name) {
    struct loaded loaded = {(uintptr_t)address, name, NULL, false};
    return dl_iterate_phdr(is_it, &loaded) != 0 && loaded.called;
}

bool linker_lie_together(const void *one, const void *other) {
    struct loaded first = {(uintptr_t)one, NULL, NULL, false};
    struct loaded second = {(uintptr_t)other, NULL, NULL, false};
    return dl_iterate_phdr(is_it, &first) != 0 && dl_iterate_phdr(is_it, &second) != 0 && first.dynamic == second.dynamic;
}

static _Atomic(void *) next_dlopen;
static _Atomic(void *) next_dlmopen;

void *linker_real_dlopen(const char *file, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))next_of(&next_dlopen, "dlopen");
    return next != NULL ? next(file, flags) : NULL;
}

/* Held to a limit, or refused. */
static bool is_held(void) { return guard_mode() != GUARD_OFF; }

/* Our own, as they are exported (dlsym_*.S). */
static const struct {
    const char *name;
    void *door;
} doors[] = {{"dlsym", (void *)dlsym}, {"dlvsym", (void *)dlvsym}, {"dlopen", (void *)dlopen}, {"dlmopen", (void *)dlmopen}};

BEFORE_SANITIZERS void *linker_own_door(const char *name, const void *found) {
    for (size_t i = 0; i < sizeof doors / sizeof doors[0]; i++) {
        if (same(doors[i].name, name)) {
            return is_held() && in_c_library(name, found) != NULL ? doors[i].door : NULL;
        }
    }
    return NULL;
}

BEFORE_SANITIZERS struct linker_answer linker_dlopen_hook(uintptr_t call[4]) {
    if ((int)call[1] & RTLD_DEEPBIND && is_held()) {
        call[1] &= ~(uintptr_t)RTLD_DEEPBIND;
    }
    return (struct linker_answer){NULL, next_of(&next_dlopen, "dlopen")};
}

BEFORE_SANITIZERS struct linker_answer linker_dlmopen_hook(uintptr_t call[4]) {
    if (((Lmid_t)call[0] != LM_ID_BASE || (int)call[2] & RTLD_DEEPBIND) && is_held()) {
        call[0] = (uintptr_t)LM_ID_BASE;
        call[2] &= ~(uintptr_t)RTLD_DEEPBIND;
    }
    return (struct linker_answer){NULL, next_of(&next_dlmopen, "dlmopen")};
}

BEFORE_SANITIZERS struct linker_answer linker_dlvsym_hook(uintptr_t call[4]) {
    dlvsym_function next = linker_real_dlvsym();
    void *found = next != NULL ? intercept_redirected(call, (const char *)call[2]) : NULL;
    return (struct linker_answer){found, (void *)next};
}
