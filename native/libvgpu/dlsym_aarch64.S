/* The exported dlsym, dlvsym, dlopen and dlmopen, as in dlsym_x86_64.S: the real ones must see the link register of our caller.
 */
#if defined(__aarch64__)
.macro door name
    .p2align 2
    .globl \name
    .type \name, %function
    .hidden linker_\name\()_hook
\name:
    .cfi_startproc
    hint #34 /* bti c */
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset x29, -48
    .cfi_offset x30, -40
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x30, [sp, #32]
    add x0, sp, #16
    bl linker_\name\()_hook
    mov x9, x0
    mov x16, x1
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore x30
    .cfi_restore x29
    .cfi_def_cfa_offset 0
    cbnz x9, 1f
    cbz x16, 1f
    br x16 /* x16: what a landing pad for calls accepts from a jump */
1:
    mov x0, x9
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

    .text
    door dlsym
    door dlvsym
    door dlopen
    door dlmopen

/* Branch target identification: this code has its landing pad. */
    .section .note.gnu.property, "a", %note
    .p2align 3
    .long 4
    .long 16
    .long 5
    .asciz "GNU"
    .long 0xc0000000
    .long 4
    .long 1
    .long 0

    .section .note.GNU-stack, "", %progbits
#endif
