/* An old driver: functions that a test calls `missing` (faults.h) are not found by dlsym either.
 *
 * When the library is loaded their entries in its own table of dynamic symbols are made "undefined", as if they had never been there.
 * The table lies in memory that only this process sees. Without such an order nothing is touched.
 */
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_internal.h"
#include "store_internal.h"

extern const struct driver_entry __start_driver_entries[] __attribute__((visibility("hidden")));
extern const struct driver_entry __stop_driver_entries[] __attribute__((visibility("hidden")));
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden"))); /* of this library, not of the program */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));

struct symbols {
    ElfW(Sym) *table;
    const char *strings;
    const uint32_t *hash;
};

/* Some dynamic linkers put addresses into the section, some leave offsets. */
static uintptr_t address_of(ElfW(Addr) value)
{
    uintptr_t start = (uintptr_t)__ehdr_start;
    return value < start ? start + value : value;
}

static bool find_symbols(struct symbols *symbols)
{
    memset(symbols, 0, sizeof *symbols);
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++) {
        uintptr_t address = address_of(entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            symbols->table = (ElfW(Sym) *)address;
        else if (entry->d_tag == DT_STRTAB)
            symbols->strings = (const char *)address;
        else if (entry->d_tag == DT_GNU_HASH)
            symbols->hash = (const uint32_t *)address;
    }
    return symbols->table != NULL && symbols->strings != NULL && symbols->hash != NULL;
}

/* The hash table begins with: buckets, the first symbol in it, words of its filter, a shift. */
static ElfW(Sym) *symbol_named(const struct symbols *symbols, const char *name)
{
    uint32_t buckets = symbols->hash[0], first = symbols->hash[1], filter_words = symbols->hash[2];
    const uint32_t *bucket = symbols->hash + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = 5381;
    for (const char *c = name; *c != '\0'; c++)
        hash = hash * 33 + (unsigned char)*c;
    uint32_t index = bucket[hash % buckets];
    if (index < first)
        return NULL;
    for (;; index++) {
        uint32_t found = chain[index - first];
        if ((found | 1) == (hash | 1) && strcmp(symbols->strings + symbols->table[index].st_name, name) == 0)
            return &symbols->table[index];
        if (found & 1)
            return NULL;
    }
}

static void hide(ElfW(Sym) *symbol)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)symbol / page * page;
    size_t length = round_up((uintptr_t)(symbol + 1), page) - first;
    if (mprotect((void *)first, length, PROT_READ | PROT_WRITE) != 0)
        return;
    symbol->st_value = 0;
    symbol->st_shndx = SHN_UNDEF;
    (void)mprotect((void *)first, length, PROT_READ);
}

__attribute__((constructor)) static void hide_missing(void)
{
    char path[4096];
    const char *given = getenv("FAKEGPU_FAULTS");
    bool in_file = store_path(path, sizeof path, "faults") && access(path, R_OK) == 0;
    struct symbols symbols;
    if ((!in_file && (given == NULL || strstr(given, "missing") == NULL)) || !find_symbols(&symbols))
        return;
    for (const struct driver_entry *entry = __start_driver_entries; entry < __stop_driver_entries; entry++) {
        ElfW(Sym) *symbol = fault_missing(entry->name) ? symbol_named(&symbols, entry->name) : NULL;
        if (symbol != NULL)
            hide(symbol);
    }
}
