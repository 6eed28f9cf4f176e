/* The exported dlsym, dlvsym, dlopen and dlmopen. In assembler, because the real ones look at their return address: for RTLD_NEXT,
 * for where a library is looked for, it must be our caller's. So what is not ours is left by a jump with the stack as we found it.
 * intercept.c and linker.c decide: each hook gets the arguments and may change them.
 */
#if defined(__x86_64__)
.macro door name
    .globl \name
    .type \name, @function
    .hidden linker_\name\()_hook
\name:
    .cfi_startproc
    endbr64
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    movq %rsp, %rdi
    call linker_\name\()_hook
    movq %rdx, %r11
    popq %rdi
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jnz 1f
    testq %r11, %r11
    jz 1f
    jmp *%r11
1:
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

    .text
    door dlsym
    door dlvsym
    door dlopen
    door dlmopen

/* This code has its landing pad and returns as it was called: it may run with indirect branch tracking and a shadow stack. */
    .section .note.gnu.property, "a", @note
    .p2align 3
    .long 4
    .long 16
    .long 5
    .asciz "GNU"
    .long 0xc0000002
    .long 4
    .long 3
    .long 0

    .section .note.GNU-stack, "", @progbits
#endif
