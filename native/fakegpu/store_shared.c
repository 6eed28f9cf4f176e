/* Memory that several processes hold and whose payer died (cuda_ipc_share.h): it is on the card, though in no account until one
 * of its holders calls the driver again. See store_internal.h.
 */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cuda_ipc_share.h"
#include "store_internal.h"

static bool is_locked(int file, off_t byte)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(file, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

/* The slot of a process that holds the memory; -1 if it is only in a descriptor that no process has taken up yet. */
static int holder(int file)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHARE_HOLDERS, .l_len = FAKE_MAX_SLOTS};
    bool found = fcntl(file, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
    return found && range.l_start >= SHARE_HOLDERS ? (int)(range.l_start - SHARE_HOLDERS) : -1;
}

uint64_t store_orphans(const char *uuid, uint64_t *holders)
{
    char path[4096];
    DIR *directory = store_path(path, sizeof path, SHARE_FOLDER) ? opendir(path) : NULL;
    if (!directory) {
        return 0; /* as long as nothing was shared there is no such folder */
    }
    uint64_t bytes = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        int file = entry->d_name[0] == '.' ? -1 : openat(dirfd(directory), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (file < 0) {
            continue;
        }
        struct share_info info;
        if (pread(file, &info, sizeof info, 0) == (ssize_t)sizeof info && info.magic == SHARE_MAGIC &&
            strncmp(info.card, uuid, sizeof info.card) == 0 && !is_locked(file, SHARE_PAYS) && is_locked(file, SHARE_HOLDS)) {
            bytes += info.bytes;
            int slot = holders ? holder(file) : -1;
            if (slot >= 0) {
                holders[slot] += info.bytes;
            }
        }
        close(file);
    }
    closedir(directory);
    return bytes;
}
