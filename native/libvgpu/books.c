/* See books.h. */
#include "books.h"

#include <pthread.h>

#include "contexts.h"
#include "graphs.h"
#include "linear.h"
#include "pools.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t settling = PTHREAD_MUTEX_INITIALIZER;
struct books books;

void books_lock(void) { pthread_mutex_lock(&lock); }
void books_unlock(void) { pthread_mutex_unlock(&lock); }
void books_settling(void) { pthread_mutex_lock(&settling); }
void books_settled(void) { pthread_mutex_unlock(&settling); }

void books_forget_after_fork(void) {
    pthread_mutex_init(&settling, NULL);
    pthread_mutex_init(&lock, NULL); /* another thread of the parent may have held it */
    table_forget(&books.allocations);
    table_forget(&books.managed);
    table_forget(&books.pool_pieces);
    table_forget(&books.small_pages);
    table_forget(&books.shared);
    table_forget(&books.handles);
    table_forget(&books.mappings);
    table_forget(&books.objects);
    table_forget(&books.arrays);
    table_forget(&books.graphs);
    table_forget(&books.contexts);
    contexts_forget_after_fork();
    growth_forget_after_fork();
    graphs_forget_after_fork();
    linear_forget_after_fork();
    pools_forget_after_fork();
}
