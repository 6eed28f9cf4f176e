/* A library that is not the driver, but has names like its own: found through its handle, they are nobody's but its own. Also the last
 * in a chain of `chained_name` functions (see interception_third.c).
 */
int cudaMalloc(void);
int curl_easy_init(void);
int cuInit(void);
int cuMemAlloc_v2(void);
int nvmlInit_v2(void);
int chained_name(void);

int cudaMalloc(void) { return 21; }
int curl_easy_init(void) { return 22; }
int cuInit(void) { return 23; }
int cuMemAlloc_v2(void) { return 24; }
int nvmlInit_v2(void) { return 25; }
int chained_name(void) { return 100; }
