/* Memory that two processes have.
 *
 *   ipc get <piece>            answers the handle in hexadecimal
 *   ipc open <name> <handle>   ipc close <name>
 *   vmm-send <handle> <path>   waits on a unix socket for one receiver and hands it the handle's descriptor
 *   vmm-receive <handle> <path> <size>
 *   pool-send <pool> <path> | pool-receive <pool> <path>   the same for a pool
 *   pool-pointer <piece>       answers what stands for a pointer of a pool, in hexadecimal; pool-open <name> <pool> <that>
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "probe.h"

static bool from_hex(const char *text, unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        unsigned int byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1) {
            return false;
        }
        bytes[i] = (unsigned char)byte;
    }
    return true;
}

static void answer_hex(struct answer *answer, const void *bytes, size_t count) {
    answer_ok(answer, "%s", "");
    answer_more(answer, " ");
    for (size_t i = 0; i < count; i++) {
        answer_more(answer, "%02x", ((const unsigned char *)bytes)[i]);
    }
}

static void ipc_command(const struct command *command, struct answer *answer) {
    const char *what = word(command, 1, ""), *name = word(command, 2, "");
    CUipcMemHandle handle;
    memset(&handle, 0, sizeof handle);
    if (strcmp(what, "open") == 0) {
        CUdeviceptr pointer = 0;
        if (!from_hex(word(command, 3, ""), (unsigned char *)handle.reserved, sizeof handle.reserved)) {
            answer_bad(answer, "no handle in hexadecimal");
            return;
        }
        CUresult result = CALL(cuIpcOpenMemHandle_v2, &pointer, handle, 1 /* peer access where it is needed */);
        if (result == CUDA_SUCCESS) {
            thing_add(THING_PIECE, name, NULL, pointer, 0);
        }
        answer_result(answer, result);
        return;
    }
    struct thing *piece = thing_find(THING_PIECE, name);
    if (piece == NULL) {
        answer_bad(answer, "no piece %s", name);
    } else if (strcmp(what, "close") == 0) {
        answer_result(answer, CALL(cuIpcCloseMemHandle, piece->value));
        thing_forget(piece);
    } else {
        CUresult result = CALL(cuIpcGetMemHandle, &handle, piece->value);
        if (result != CUDA_SUCCESS) {
            answer_result(answer, result);
            return;
        }
        answer_hex(answer, handle.reserved, sizeof handle.reserved);
    }
}

static int unix_socket(const char *path, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

union descriptor_message {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
};

static bool send_descriptor(const char *path, int descriptor) {
    struct sockaddr_un address;
    int door = unix_socket(path, &address);
    unlink(path);
    if (door < 0 || bind(door, (struct sockaddr *)&address, sizeof address) != 0 || listen(door, 1) != 0) {
        return false;
    }
    int guest = accept(door, NULL, NULL);
    close(door);
    if (guest < 0) {
        return false;
    }
    char byte = 'f';
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union descriptor_message control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    bool sent = sendmsg(guest, &message, 0) == 1;
    close(guest);
    return sent;
}

static int receive_descriptor(const char *path) {
    struct sockaddr_un address;
    int guest = -1;
    for (int tries = 0; tries < 1000; tries++) { /* the sender may not listen yet */
        guest = unix_socket(path, &address);
        if (guest < 0 || connect(guest, (struct sockaddr *)&address, sizeof address) == 0) {
            break;
        }
        close(guest);
        guest = -1;
        usleep(10000);
    }
    if (guest < 0) {
        return -1;
    }
    char byte;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    union descriptor_message control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    int descriptor = -1;
    if (recvmsg(guest, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL) {
        memcpy(&descriptor, CMSG_DATA(&control.header), sizeof descriptor);
    }
    close(guest);
    return descriptor;
}

static void send_command(const struct command *command, struct answer *answer) {
    const struct thing *handle = thing_find(THING_HANDLE, word(command, 1, ""));
    if (handle == NULL) {
        answer_bad(answer, "no handle %s", word(command, 1, ""));
        return;
    }
    int descriptor = -1;
    CUresult result = CALL(cuMemExportToShareableHandle, &descriptor, handle->value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
        return;
    }
    if (send_descriptor(word(command, 2, ""), descriptor)) {
        answer_ok(answer, "%s", "");
    } else {
        answer_bad(answer, "sending failed: %s", strerror(errno));
    }
    close(descriptor);
}

static void receive_command(const struct command *command, struct answer *answer) {
    int descriptor = receive_descriptor(word(command, 2, ""));
    if (descriptor < 0) {
        answer_bad(answer, "receiving failed: %s", strerror(errno));
        return;
    }
    CUmemGenericAllocationHandle handle = 0;
    CUresult result =
        CALL(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(descriptor);
    if (result == CUDA_SUCCESS) {
        thing_add(THING_HANDLE, word(command, 1, ""), NULL, handle, size_word(command, 3, 0));
    }
    answer_result(answer, result);
}

static void pool_send(const struct thing *pool, const char *path, struct answer *answer) {
    int descriptor = -1;
    CUresult result = CALL(cuMemPoolExportToShareableHandle, &descriptor, pool->object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
    } else if (send_descriptor(path, descriptor)) {
        answer_ok(answer, "%s", "");
    } else {
        answer_bad(answer, "sending failed: %s", strerror(errno));
    }
    close(descriptor);
}

static void pool_receive(const char *name, const char *path, struct answer *answer) {
    int descriptor = receive_descriptor(path);
    CUmemoryPool pool = NULL;
    CUresult result = CALL(cuMemPoolImportFromShareableHandle, &pool, (void *)(intptr_t)descriptor,
                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    close(descriptor);
    if (result == CUDA_SUCCESS) {
        thing_add(THING_POOL, name, pool, 0, 0);
    }
    answer_result(answer, result);
}

static void pool_pointer(const struct thing *piece, struct answer *answer) {
    CUmemPoolPtrExportData data;
    CUresult result = CALL(cuMemPoolExportPointer, &data, piece->value);
    if (result != CUDA_SUCCESS) {
        answer_result(answer, result);
    } else {
        answer_hex(answer, &data, sizeof data);
    }
}

static void pool_open(const char *name, const struct thing *pool, const char *text, struct answer *answer) {
    CUmemPoolPtrExportData data;
    CUdeviceptr pointer = 0;
    if (!from_hex(text, data.reserved, sizeof data.reserved)) {
        answer_bad(answer, "nothing in hexadecimal");
        return;
    }
    CUresult result = CALL(cuMemPoolImportPointer, &pointer, pool->object, &data);
    if (result == CUDA_SUCCESS) {
        thing_add(THING_PIECE, name, NULL, pointer, 0);
    }
    answer_result(answer, result);
}

static bool pool_share_commands(const struct command *command, struct answer *answer) {
    const char *what = command->words[0], *first = word(command, 1, ""), *second = word(command, 2, "");
    if (strncmp(what, "pool-", 5) != 0) {
        return false;
    }
    bool opens = strcmp(what, "pool-open") == 0;
    const struct thing *thing = strcmp(what, "pool-pointer") == 0 ? thing_find(THING_PIECE, first)
                                                                 : thing_find(THING_POOL, opens ? second : first);
    if (strcmp(what, "pool-receive") == 0) {
        pool_receive(first, second, answer);
    } else if (thing == NULL) {
        answer_bad(answer, "no such pool or piece");
    } else if (strcmp(what, "pool-send") == 0) {
        pool_send(thing, second, answer);
    } else if (opens) {
        pool_open(first, thing, word(command, 3, ""), answer);
    } else {
        pool_pointer(thing, answer);
    }
    return true;
}

bool share_commands(const struct command *command, struct answer *answer) {
    if (strcmp(command->words[0], "ipc") == 0) {
        ipc_command(command, answer);
    } else if (strcmp(command->words[0], "vmm-send") == 0) {
        send_command(command, answer);
    } else if (strcmp(command->words[0], "vmm-receive") == 0) {
        receive_command(command, answer);
    } else {
        return pool_share_commands(command, answer);
    }
    return true;
}
