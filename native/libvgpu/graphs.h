/* Memory that CUDA graphs allocate when they run. */
#ifndef HAMI_VGPU_GRAPHS_H
#define HAMI_VGPU_GRAPHS_H

#include <stdint.h>

/* What the driver has reserved for graphs of this process on a card. */
uint64_t graphs_reserved(int index);

void graphs_forget_after_fork(void);

#endif
