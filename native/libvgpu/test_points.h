/* Labelled points at which a test lets a process be killed. Only in the test build (-DVGPU_TEST_POINTS): VGPU_KILL_AT=<label>:<n> sends
 * SIGKILL to the process when it passes the label for the n-th time. In the product the macro is nothing. Tests find the labels by
 * reading the sources, so a new one is tested as soon as it is written.
 *
 * VGPU_HOLD_IN=<folder> lets one thread stand still: the first that passes a label whose file is there renames the file to <label>.held, and
 * goes on when that is removed. All other threads pass.
 */
#ifndef HAMI_VGPU_TEST_POINTS_H
#define HAMI_VGPU_TEST_POINTS_H

#ifdef VGPU_TEST_POINTS
void test_point(const char *label);
#define TEST_POINT(label) test_point(label)
#else
#define TEST_POINT(label) ((void)0)
#endif

#endif
