/* Device memory that several processes hold: see cuda_ipc_share.h. */
#include "cuda_ipc_share.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_internal.h"

#define SWEEP_EVERY 64

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

struct share {
    struct share *next, *before;
    struct share_info info;
    char id[SHARE_ID_SIZE];
    int file;
    int card;
    CUdevice device; /* -1: this process does not see the card (any more) */
    bool pays, held, made_here;
};

static struct share *all;
static unsigned int made;

static bool set_lock(int file, short type, off_t first, off_t length)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = length};
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

static bool folder_path(char *path, size_t size)
{
    const char *folder = getenv("FAKEGPU_DIR");
    int length = snprintf(path, size, "%s/%s", folder != NULL && *folder != '\0' ? folder : "/run/fakegpu", SHARE_FOLDER);
    return length > 0 && (size_t)length < size;
}

static bool file_path(char *path, size_t size, const char *id)
{
    char folder[3500];
    if (!folder_path(folder, sizeof folder))
        return false;
    int length = snprintf(path, size, "%s/%s", folder, id);
    return length > 0 && (size_t)length < size;
}

static void insert(struct share *share)
{
    share->next = all;
    share->before = NULL;
    if (all != NULL)
        all->before = share;
    all = share;
}

static void dispose(struct share *share)
{
    if (share->before != NULL)
        share->before->next = share->next;
    else
        all = share->next;
    if (share->next != NULL)
        share->next->before = share->before;
    close(share->file);
    free(share);
}

/* Files whose processes were all killed. */
static void sweep(const char *folder)
{
    DIR *directory = opendir(folder);
    if (directory == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        int file = openat(dirfd(directory), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (file < 0)
            continue;
        struct stat status;
        /* A file of size 0 is being made right now. */
        if (fstat(file, &status) == 0 && status.st_size > 0 && set_lock(file, F_WRLCK, SHARE_PAYS, 2))
            unlinkat(dirfd(directory), entry->d_name, 0);
        close(file);
    }
    closedir(directory);
}

struct share *share_make(int card, const struct share_info *info)
{
    char folder[3500], path[4000];
    struct share *share = calloc(1, sizeof *share);
    if (share == NULL || !folder_path(folder, sizeof folder)) {
        free(share);
        return NULL;
    }
    if (mkdir(folder, 0777) == 0)
        (void)chmod(folder, 01777); /* containers run as different users */
    if (made++ % SWEEP_EVERY == 0)
        sweep(folder);
    share->file = -1;
    share->info = *info;
    share->info.magic = SHARE_MAGIC;
    const struct fake_device *cards;
    store_devices(&cards);
    memcpy(share->info.card, cards[card].uuid, sizeof share->info.card);
    do {
        uint64_t now = store_now();
        snprintf(share->id, sizeof share->id, "%x-%x-%llx", (unsigned int)getpid(), made, (unsigned long long)now);
        if (!file_path(path, sizeof path, share->id))
            break;
        share->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        made++;
    } while (share->file < 0 && errno == EEXIST);
    if (share->file < 0) {
        free(share);
        return NULL;
    }
    (void)fchmod(share->file, 0666);
    share->card = card;
    share->device = -1;
    for (int i = 0; i < devices_count(); i++)
        if (device_card(i) == card)
            share->device = i;
    share->pays = share->held = share->made_here = true;
    insert(share);
    /* Locks before content: see sweep(). */
    if (!set_lock(share->file, F_WRLCK, SHARE_PAYS, 1) || !set_lock(share->file, F_RDLCK, SHARE_HOLDS, 1) ||
        write(share->file, &share->info, sizeof share->info) != (ssize_t)sizeof share->info) {
        unlink(path);
        dispose(share);
        return NULL;
    }
    /* A hole: takes no room until bytes are written. Without it (a full disk) processes do not see each other's bytes, no more. */
    if (ftruncate(share->file, (off_t)(SHARE_DATA + share->info.size)) != 0)
        errno = 0;
    return share;
}

/* `file` is an open file of our own: its locks are ours alone. */
static struct share *hold(int file, const char *id)
{
    struct share *share = calloc(1, sizeof *share);
    if (share == NULL) {
        close(file);
        return NULL;
    }
    share->file = file;
    share->device = -1;
    snprintf(share->id, sizeof share->id, "%s", id);
    bool valid = pread(file, &share->info, sizeof share->info, 0) == (ssize_t)sizeof share->info &&
                 share->info.magic == SHARE_MAGIC && set_lock(file, F_RDLCK, SHARE_HOLDS, 1);
    share->info.card[sizeof share->info.card - 1] = '\0';
    for (int i = 0; valid && i < devices_count(); i++)
        if (strcmp(device_info(i)->uuid, share->info.card) == 0) {
            share->device = i;
            share->card = device_card(i);
        }
    share->held = true;
    int slot = store_slot();
    if (slot >= 0)
        set_lock(file, F_RDLCK, SHARE_HOLDERS + slot, 1);
    insert(share);
    if (share->device < 0) {
        dispose(share);
        return NULL;
    }
    return share;
}

struct share *share_open(const char *id)
{
    char path[4000];
    if (strchr(id, '/') != NULL || !file_path(path, sizeof path, id))
        return NULL;
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return file < 0 ? NULL : hold(file, id);
}

struct share *share_open_descriptor(int descriptor)
{
    char link[64], path[4000];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return NULL;
    path[length] = '\0';
    const char *id = strrchr(path, '/');
    if (id == NULL || strlen(id + 1) >= SHARE_ID_SIZE)
        return NULL;
    /* A new open file, for locks of its own; through /proc, because the sender may see the folder under another path. */
    int file = open(link, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    return file < 0 ? NULL : hold(file, id + 1);
}

int share_export(const struct share *share)
{
    char path[4000];
    if (!file_path(path, sizeof path, share->id))
        return -1;
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file >= 0 && !set_lock(file, F_RDLCK, SHARE_HOLDS, 1)) {
        close(file);
        return -1;
    }
    return file;
}

/* True if it is gone. */
static bool settle_lingering(struct share *share)
{
    /* Taking the lock for writing shows that no other process holds it, and keeps others out until the file is removed. */
    if (!set_lock(share->file, F_WRLCK, SHARE_HOLDS, 1))
        return false;
    char path[4000];
    if (file_path(path, sizeof path, share->id))
        unlink(path);
    store_give(share->card, FAKE_PROCESS, share->info.bytes);
    dispose(share);
    return true;
}

void share_let_go(struct share *share)
{
    share->held = false;
    if (!share->pays) {
        dispose(share);
        return;
    }
    set_lock(share->file, F_UNLCK, SHARE_HOLDS, 1);
    settle_lingering(share);
}

void shares_settle(void)
{
    for (struct share *share = all, *next; share != NULL; share = next) {
        next = share->next;
        if (!share->held) {
            settle_lingering(share);
        } else if (!share->pays && set_lock(share->file, F_WRLCK, SHARE_PAYS, 1)) {
            share->pays = store_take(share->card, FAKE_PROCESS, share->info.bytes);
            if (!share->pays) /* no room at the moment: a holder, perhaps this one, will try again */
                set_lock(share->file, F_UNLCK, SHARE_PAYS, 1);
        }
    }
}

void shares_forget(void)
{
    for (struct share *share = all; share != NULL; share = share->next)
        close(share->file);
    all = NULL;
}

void share_show(const struct share *share, CUdeviceptr start, size_t length, size_t offset, bool keep)
{
    struct stat status;
    off_t place = (off_t)(SHARE_DATA + offset);
    if (fstat(share->file, &status) != 0 || status.st_size < place + (off_t)length)
        return; /* touching what is behind a file's end would kill the process */
    char *bytes = (char *)(uintptr_t)start;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *present = keep ? malloc(length / page) : NULL;
    if (present != NULL && mincore(bytes, length, present) == 0)
        for (size_t i = 0; i < length / page; i++)
            if ((present[i] & 1) != 0 && pwrite(share->file, bytes + i * page, page, place + (off_t)(i * page)) < 0)
                break;
    free(present);
    (void)mmap(bytes, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, share->file, place);
}

bool share_made_here(const char *id)
{
    for (const struct share *share = all; share != NULL; share = share->next)
        if (share->made_here && strcmp(share->id, id) == 0)
            return true;
    return false;
}

const struct share_info *share_info(const struct share *share)
{
    return &share->info;
}

const char *share_id(const struct share *share)
{
    return share->id;
}

CUdevice share_device(const struct share *share)
{
    return share->device;
}
