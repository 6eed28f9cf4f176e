/* Reads kernels and variables out of PTX text: a scanner that knows words, brackets and comments, no more. The stand-in runs nothing,
 * so all it needs is names, sizes and the costs that tests write into comments. */
#include "cuda_module_ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_COST 5000ull
#define WORD_SIZE 1024 /* mangled names are long */

struct scanner {
    const char *at;
    int depth;   /* of braces */
    bool failed; /* out of memory */
    struct ptx *ptx;
};

static bool name_character(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* The kernel whose body the scanner is in: the newest one, as bodies do not nest. */
static struct ptx_kernel *newest_kernel(const struct scanner *scanner) {
    return scanner->ptx->kernel_count == 0 ? NULL : &scanner->ptx->kernels[scanner->ptx->kernel_count - 1];
}

/* `fakegpu: code N` or `fakegpu: cost N` in the comment that starts at `text` and ends at `end`. */
static void read_order(struct scanner *scanner, const char *text, const char *end) {
    char line[WORD_SIZE];
    size_t length = (size_t)(end - text);
    if (length >= sizeof line) {
        length = sizeof line - 1;
    }
    memcpy(line, text, length);
    line[length] = '\0';
    const char *order = strstr(line, "fakegpu:");
    if (order == NULL) {
        return;
    }
    order += strlen("fakegpu:");
    while (*order == ' ' || *order == '\t') {
        order++;
    }
    struct ptx_kernel *kernel = newest_kernel(scanner);
    if (strncmp(order, "code ", 5) == 0) {
        scanner->ptx->code = strtoull(order + 5, NULL, 10);
    } else if (strncmp(order, "cost ", 5) == 0 && kernel != NULL && scanner->depth > 0) {
        kernel->cost = strtoull(order + 5, NULL, 10);
    }
}

/* Skips blanks and comments. */
static void skip(struct scanner *scanner) {
    for (;;) {
        while (isspace((unsigned char)*scanner->at)) {
            scanner->at++;
        }
        const char *start = scanner->at;
        if (start[0] == '/' && start[1] == '/') {
            scanner->at = strchrnul(start, '\n');
            read_order(scanner, start, scanner->at);
        } else if (start[0] == '/' && start[1] == '*') {
            const char *end = strstr(start + 2, "*/");
            scanner->at = end == NULL ? start + strlen(start) : end + 2;
            read_order(scanner, start, scanner->at);
        } else {
            return;
        }
    }
}

/* The next word or single character into `word`. False at the end of the text. */
static bool next(struct scanner *scanner, char word[WORD_SIZE]) {
    skip(scanner);
    if (*scanner->at == '\0') {
        return false;
    }
    size_t length = 0;
    while (name_character(*scanner->at)) {
        if (length + 1 < WORD_SIZE) {
            word[length++] = *scanner->at;
        }
        scanner->at++;
    }
    if (length == 0) {
        word[length++] = *scanner->at++;
    }
    word[length] = '\0';
    if (word[0] == '{') {
        scanner->depth++;
    } else if (word[0] == '}' && scanner->depth > 0) {
        scanner->depth--;
    }
    return true;
}

/* Bytes of one element of a type such as .b8, .u32 or .f64; 0 if the word is no type. */
static uint64_t element_bytes(const char *word) {
    if (word[0] != '.' || strchr("bsuf", word[1]) == NULL || word[1] == '\0') {
        return 0;
    }
    char *end;
    unsigned long bits = strtoul(word + 2, &end, 10);
    return *end == '\0' && (bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128) ? bits / 8 : 0;
}

/* Reads a declaration up to its `;` or `=`, after .local, .shared, .global or .const. Writes its name and returns its bytes. */
static uint64_t declaration(struct scanner *scanner, char name[WORD_SIZE]) {
    char word[WORD_SIZE] = "";
    uint64_t element = 0, vector = 1, count = 1;
    name[0] = '\0';
    while (next(scanner, word) && word[0] != ';' && word[0] != '=') {
        if (strcmp(word, ".align") == 0) {
            next(scanner, word);
        } else if (strcmp(word, ".v2") == 0 || strcmp(word, ".v4") == 0) {
            vector = (uint64_t)(word[2] - '0');
        } else if (word[0] == '[') {
            count *= next(scanner, word) ? strtoull(word, NULL, 0) : 0;
        } else if (element == 0) {
            element = element_bytes(word);
        } else if (name[0] == '\0' && word[0] != ']') {
            memcpy(name, word, WORD_SIZE);
        }
    }
    while (word[0] == '=' && *scanner->at != '\0' && *scanner->at != ';') {
        scanner->at++; /* the initial value does not matter */
    }
    return element * vector * count;
}

static void add_kernel(struct scanner *scanner) {
    char word[WORD_SIZE];
    struct ptx *ptx = scanner->ptx;
    struct ptx_kernel *grown = realloc(ptx->kernels, (ptx->kernel_count + 1) * sizeof *grown);
    char *name = next(scanner, word) ? strdup(word) : NULL;
    if (grown != NULL) {
        ptx->kernels = grown;
    }
    if (grown == NULL || name == NULL) {
        free(name);
        scanner->failed = true;
        return;
    }
    uint64_t cost = DEFAULT_COST;
    if (strncmp(name, "k_", 2) == 0 && isdigit((unsigned char)name[2])) {
        cost = strtoull(name + 2, NULL, 10);
    }
    ptx->kernels[ptx->kernel_count++] = (struct ptx_kernel){.name = name, .cost = cost};
}

static void add_variable(struct scanner *scanner) {
    char word[WORD_SIZE];
    struct ptx *ptx = scanner->ptx;
    uint64_t bytes = declaration(scanner, word);
    struct ptx_variable *grown = realloc(ptx->variables, (ptx->variable_count + 1) * sizeof *grown);
    char *name = strdup(word);
    if (grown != NULL) {
        ptx->variables = grown;
    }
    if (grown == NULL || name == NULL) {
        free(name);
        scanner->failed = true;
        return;
    }
    ptx->variables[ptx->variable_count++] = (struct ptx_variable){.name = name, .bytes = bytes};
}

bool ptx_read(const char *text, struct ptx *found) {
    *found = (struct ptx){0};
    struct scanner scanner = {.at = text, .ptx = found};
    char word[WORD_SIZE];
    bool in_kernel = false, is_ptx = false;
    while (!scanner.failed && next(&scanner, word)) {
        struct ptx_kernel *kernel = in_kernel ? newest_kernel(&scanner) : NULL;
        if (strcmp(word, ".version") == 0) {
            is_ptx = true;
        } else if (strcmp(word, ".entry") == 0) {
            add_kernel(&scanner);
            in_kernel = true;
        } else if (strcmp(word, ".func") == 0) {
            in_kernel = false;
        } else if (scanner.depth == 0 && (strcmp(word, ".global") == 0 || strcmp(word, ".const") == 0)) {
            add_variable(&scanner);
        } else if (kernel != NULL && scanner.depth > 0 && strcmp(word, ".local") == 0) {
            kernel->local += declaration(&scanner, word);
        } else if (kernel != NULL && scanner.depth > 0 && strcmp(word, ".shared") == 0) {
            kernel->shared += declaration(&scanner, word);
        }
    }
    if (scanner.failed || !is_ptx) {
        ptx_free(found);
        return false;
    }
    return true;
}

void ptx_free(struct ptx *ptx) {
    for (unsigned int i = 0; i < ptx->kernel_count; i++) {
        free(ptx->kernels[i].name);
    }
    for (unsigned int i = 0; i < ptx->variable_count; i++) {
        free(ptx->variables[i].name);
    }
    free(ptx->kernels);
    free(ptx->variables);
    *ptx = (struct ptx){0};
}
