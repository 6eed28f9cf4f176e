/* Device memory that several processes hold: who pays for it, and until when.
 *
 * Each piece has a file FAKEGPU_DIR/shared/<id>. A holder of the memory (by handle, mapping, or an exported descriptor, also one on
 * its way through a socket) has a read lock on byte 1 of the file; the one process in whose account it stands has a write lock on byte
 * 0. The locks are of the open file, so the kernel drops them however a process ends. First the maker pays. If it has let go while
 * others hold, it goes on paying until they are gone; if it died, the next holder that calls the driver takes the account over. Until
 * then NVML counts it for one of them all the same, as the real driver does at once: who holds also locks the byte of its slot.
 */
#ifndef FAKEGPU_CUDA_IPC_SHARE_H
#define FAKEGPU_CUDA_IPC_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

enum share_kind { SHARE_PHYSICAL = 1, SHARE_LINEAR = 2, SHARE_POOL = 3 };

#define SHARE_FOLDER "shared"
#define SHARE_MAGIC 0x3145524148534b46ull
#define SHARE_PAYS 0  /* the bytes that are locked */
#define SHARE_HOLDS 1
#define SHARE_HOLDERS 16 /* and FAKE_MAX_SLOTS - 1 more */

/* What stands at the beginning of the file; from SHARE_DATA on it has the memory's own bytes. */
struct share_info {
    uint64_t magic;
    uint32_t kind;
    uint32_t reserved;
    char card[96]; /* UUID: ordinals differ between processes */
    uint64_t bytes; /* on the card */
    uint64_t size;  /* of the memory */
    CUmemAllocationProp properties;
};

#define SHARE_DATA (2u << 20)

struct share;

#define SHARE_ID_SIZE 40

/* All (locked). `bytes` is on the card already, in this process's account; from now on the share gives it back. NULL: the folder
 * cannot be written. */
struct share *share_make(int card, const struct share_info *info);
/* Holds what another (or this) process made. NULL: gone, or no such card here. */
struct share *share_open(const char *id);
struct share *share_open_descriptor(int descriptor);
/* A new descriptor that names the share and holds it while it is open anywhere; -1. */
int share_export(const struct share *share);
void share_let_go(struct share *share);

/* Whether this process made it. Not by pid: containers have equal ones. */
bool share_made_here(const char *id);

const struct share_info *share_info(const struct share *share);
const char *share_id(const struct share *share);
CUdevice share_device(const struct share *share);

/* Puts the share's bytes at these addresses, which are anonymous memory now; `keep`: what was written there goes into the share. */
void share_show(const struct share *share, CUdeviceptr start, size_t length, size_t offset, bool keep);

/* Gives back and takes over what has become due since the last call. */
void shares_settle(void);
/* In a forked child, without lock: what the parent holds is not ours. */
void shares_forget(void);

#endif
