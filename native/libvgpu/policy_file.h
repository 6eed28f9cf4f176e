/* Reading the agent's policy file: all of it is checked before any of it counts. */
#ifndef HAMI_VGPU_POLICY_FILE_H
#define HAMI_VGPU_POLICY_FILE_H

#include <stdbool.h>

#include "limits.h"

/* The file's stamp, without opening it. False if there is no file. */
bool policy_file_stamp(const char *path, struct limits_stamp *stamp);

/* Fills *limits (source LIMITS_POLICY, `seen` included) from a valid file; else false, and *limits is untouched but for `seen`. */
bool policy_file_read(const struct places *places, struct limits *limits);

#endif
