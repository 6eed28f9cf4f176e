/* The exported dlsym. In assembler, because the real one looks at its return address: for RTLD_NEXT it must be our caller's, so what
 * is not ours is left by a jump with the stack as we found it. intercept.c decides.
 */
#if defined(__x86_64__)
    .text
    .globl dlsym
    .type dlsym, @function
    .hidden intercept_dlsym_hook
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call intercept_dlsym_hook
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jnz 1f
    testq %rdx, %rdx
    jz 1f
    jmp *%rdx
1:
    ret
    .cfi_endproc
    .size dlsym, . - dlsym

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
