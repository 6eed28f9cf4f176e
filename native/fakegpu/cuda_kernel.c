/* Launches: a kernel takes its time on the card's timeline, and at its first launch the memory that its code and threads need. */
#include "cuda_kernel.h"

#include "cuda_graph.h"

#define LARGEST_BLOCK 1024u

CUresult kernel_check(const struct launch *launch) {
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    return threads == 0 || blocks == 0 || threads > LARGEST_BLOCK ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult kernel_prepare(CUfunction function, CUcontext context) {
    if (function->module->context != context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = module_load_code(function->module);
    return result != CUDA_SUCCESS ? result : context_local_memory(context, function->kernel->local);
}

static CUresult launch_kernel(const struct launch *launch, const void *handle, CUstream stream_handle, bool per_thread) {
    CUstream stream;
    CUresult result = kernel_check(launch);
    if (result == CUDA_SUCCESS) {
        result = stream_lock(stream_handle, per_thread, &stream);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUfunction function = NULL;
    result = function_find(handle, stream->context, &function);
    if (result == CUDA_SUCCESS && stream->capture != NULL) {
        result = capture_kernel(stream, launch, function);
    } else if (result == CUDA_SUCCESS) {
        result = capture_implicit(stream);
        if (result == CUDA_SUCCESS) {
            result = kernel_prepare(function, stream->context);
        }
        if (result == CUDA_SUCCESS) {
            stream_run(stream, function->kernel->cost);
        }
    }
    driver_unlock();
    return result;
}

#define LAUNCH_PARAMETERS                                                                                          \
    CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,      \
        unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters
#define LAUNCH_OF_PARAMETERS \
    (&(struct launch){{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, parameters})

/* `extra` is the other way to pass parameters. Nothing runs, so nothing reads them. */
STREAM_ENTRY(cuLaunchKernel, (LAUNCH_PARAMETERS, void **extra),
             ((void)extra, launch_kernel(LAUNCH_OF_PARAMETERS, function, stream, per_thread)))
STREAM_ENTRY(cuLaunchCooperativeKernel, (LAUNCH_PARAMETERS), launch_kernel(LAUNCH_OF_PARAMETERS, function, stream, per_thread))

static CUresult launch_configured(const CUlaunchConfig *config, CUfunction function, bool per_thread, void **parameters) {
    if (config == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct launch launch = {
        {config->gridDimX, config->gridDimY, config->gridDimZ},
        {config->blockDimX, config->blockDimY, config->blockDimZ},
        config->sharedMemBytes,
        parameters,
    };
    return launch_kernel(&launch, function, config->hStream, per_thread);
}

STREAM_ENTRY(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
             ((void)extra, launch_configured(config, function, per_thread, parameters)))
