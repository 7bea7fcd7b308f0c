/* Loops: macros that repeat another macro for each word of a packet, or for each worker.
 *
 * EACH_WORD(M): M(0, 1) M(1, 2) ... M(WORDS - 1, WORDS). EACH_PAIR(M): M(0, 1) M(2, 3) ... EACH_FOUR(M):
 * M(0, 1, 2, 3, 4) M(4, 5, 6, 7, 8) ..., the last number being that of the next four. */
#ifndef FANIN_TNA_WORDS_P4
#define FANIN_TNA_WORDS_P4

#if WORDS > 0
#define WORD_0(M) M(0, 1) WORD_1(M)
#define PAIR_0(M) M(0, 1) PAIR_2(M)
#define FOUR_0(M) M(0, 1, 2, 3, 4) FOUR_4(M)
#else
#define WORD_0(M)
#define PAIR_0(M)
#define FOUR_0(M)
#endif
#if WORDS > 1
#define WORD_1(M) M(1, 2) WORD_2(M)
#else
#define WORD_1(M)
#endif
#if WORDS > 2
#define WORD_2(M) M(2, 3) WORD_3(M)
#define PAIR_2(M) M(2, 3) PAIR_4(M)
#else
#define WORD_2(M)
#define PAIR_2(M)
#endif
#if WORDS > 3
#define WORD_3(M) M(3, 4) WORD_4(M)
#else
#define WORD_3(M)
#endif
#if WORDS > 4
#define WORD_4(M) M(4, 5) WORD_5(M)
#define PAIR_4(M) M(4, 5) PAIR_6(M)
#define FOUR_4(M) M(4, 5, 6, 7, 8) FOUR_8(M)
#else
#define WORD_4(M)
#define PAIR_4(M)
#define FOUR_4(M)
#endif
#if WORDS > 5
#define WORD_5(M) M(5, 6) WORD_6(M)
#else
#define WORD_5(M)
#endif
#if WORDS > 6
#define WORD_6(M) M(6, 7) WORD_7(M)
#define PAIR_6(M) M(6, 7) PAIR_8(M)
#else
#define WORD_6(M)
#define PAIR_6(M)
#endif
#if WORDS > 7
#define WORD_7(M) M(7, 8) WORD_8(M)
#else
#define WORD_7(M)
#endif
#if WORDS > 8
#define WORD_8(M) M(8, 9) WORD_9(M)
#define PAIR_8(M) M(8, 9) PAIR_10(M)
#define FOUR_8(M) M(8, 9, 10, 11, 12) FOUR_12(M)
#else
#define WORD_8(M)
#define PAIR_8(M)
#define FOUR_8(M)
#endif
#if WORDS > 9
#define WORD_9(M) M(9, 10) WORD_10(M)
#else
#define WORD_9(M)
#endif
#if WORDS > 10
#define WORD_10(M) M(10, 11) WORD_11(M)
#define PAIR_10(M) M(10, 11) PAIR_12(M)
#else
#define WORD_10(M)
#define PAIR_10(M)
#endif
#if WORDS > 11
#define WORD_11(M) M(11, 12) WORD_12(M)
#else
#define WORD_11(M)
#endif
#if WORDS > 12
#define WORD_12(M) M(12, 13) WORD_13(M)
#define PAIR_12(M) M(12, 13) PAIR_14(M)
#define FOUR_12(M) M(12, 13, 14, 15, 16) FOUR_16(M)
#else
#define WORD_12(M)
#define PAIR_12(M)
#define FOUR_12(M)
#endif
#if WORDS > 13
#define WORD_13(M) M(13, 14) WORD_14(M)
#else
#define WORD_13(M)
#endif
#if WORDS > 14
#define WORD_14(M) M(14, 15) WORD_15(M)
#define PAIR_14(M) M(14, 15) PAIR_16(M)
#else
#define WORD_14(M)
#define PAIR_14(M)
#endif
#if WORDS > 15
#define WORD_15(M) M(15, 16) WORD_16(M)
#else
#define WORD_15(M)
#endif
#if WORDS > 16
#define WORD_16(M) M(16, 17) WORD_17(M)
#define PAIR_16(M) M(16, 17) PAIR_18(M)
#define FOUR_16(M) M(16, 17, 18, 19, 20) FOUR_20(M)
#else
#define WORD_16(M)
#define PAIR_16(M)
#define FOUR_16(M)
#endif
#if WORDS > 17
#define WORD_17(M) M(17, 18) WORD_18(M)
#else
#define WORD_17(M)
#endif
#if WORDS > 18
#define WORD_18(M) M(18, 19) WORD_19(M)
#define PAIR_18(M) M(18, 19) PAIR_20(M)
#else
#define WORD_18(M)
#define PAIR_18(M)
#endif
#if WORDS > 19
#define WORD_19(M) M(19, 20) WORD_20(M)
#else
#define WORD_19(M)
#endif
#if WORDS > 20
#define WORD_20(M) M(20, 21) WORD_21(M)
#define PAIR_20(M) M(20, 21) PAIR_22(M)
#define FOUR_20(M) M(20, 21, 22, 23, 24) FOUR_24(M)
#else
#define WORD_20(M)
#define PAIR_20(M)
#define FOUR_20(M)
#endif
#if WORDS > 21
#define WORD_21(M) M(21, 22) WORD_22(M)
#else
#define WORD_21(M)
#endif
#if WORDS > 22
#define WORD_22(M) M(22, 23) WORD_23(M)
#define PAIR_22(M) M(22, 23) PAIR_24(M)
#else
#define WORD_22(M)
#define PAIR_22(M)
#endif
#if WORDS > 23
#define WORD_23(M) M(23, 24) WORD_24(M)
#else
#define WORD_23(M)
#endif
#if WORDS > 24
#define WORD_24(M) M(24, 25) WORD_25(M)
#define PAIR_24(M) M(24, 25) PAIR_26(M)
#define FOUR_24(M) M(24, 25, 26, 27, 28) FOUR_28(M)
#else
#define WORD_24(M)
#define PAIR_24(M)
#define FOUR_24(M)
#endif
#if WORDS > 25
#define WORD_25(M) M(25, 26) WORD_26(M)
#else
#define WORD_25(M)
#endif
#if WORDS > 26
#define WORD_26(M) M(26, 27) WORD_27(M)
#define PAIR_26(M) M(26, 27) PAIR_28(M)
#else
#define WORD_26(M)
#define PAIR_26(M)
#endif
#if WORDS > 27
#define WORD_27(M) M(27, 28) WORD_28(M)
#else
#define WORD_27(M)
#endif
#if WORDS > 28
#define WORD_28(M) M(28, 29) WORD_29(M)
#define PAIR_28(M) M(28, 29) PAIR_30(M)
#define FOUR_28(M) M(28, 29, 30, 31, 32) FOUR_32(M)
#else
#define WORD_28(M)
#define PAIR_28(M)
#define FOUR_28(M)
#endif
#if WORDS > 29
#define WORD_29(M) M(29, 30) WORD_30(M)
#else
#define WORD_29(M)
#endif
#if WORDS > 30
#define WORD_30(M) M(30, 31) WORD_31(M)
#define PAIR_30(M) M(30, 31) PAIR_32(M)
#else
#define WORD_30(M)
#define PAIR_30(M)
#endif
#if WORDS > 31
#define WORD_31(M) M(31, 32) WORD_32(M)
#else
#define WORD_31(M)
#endif
#if WORDS > 32
#define WORD_32(M) M(32, 33) WORD_33(M)
#define PAIR_32(M) M(32, 33) PAIR_34(M)
#define FOUR_32(M) M(32, 33, 34, 35, 36) FOUR_36(M)
#else
#define WORD_32(M)
#define PAIR_32(M)
#define FOUR_32(M)
#endif
#if WORDS > 33
#define WORD_33(M) M(33, 34) WORD_34(M)
#else
#define WORD_33(M)
#endif
#if WORDS > 34
#define WORD_34(M) M(34, 35) WORD_35(M)
#define PAIR_34(M) M(34, 35) PAIR_36(M)
#else
#define WORD_34(M)
#define PAIR_34(M)
#endif
#if WORDS > 35
#define WORD_35(M) M(35, 36) WORD_36(M)
#else
#define WORD_35(M)
#endif
#if WORDS > 36
#define WORD_36(M) M(36, 37) WORD_37(M)
#define PAIR_36(M) M(36, 37) PAIR_38(M)
#define FOUR_36(M) M(36, 37, 38, 39, 40) FOUR_40(M)
#else
#define WORD_36(M)
#define PAIR_36(M)
#define FOUR_36(M)
#endif
#if WORDS > 37
#define WORD_37(M) M(37, 38) WORD_38(M)
#else
#define WORD_37(M)
#endif
#if WORDS > 38
#define WORD_38(M) M(38, 39) WORD_39(M)
#define PAIR_38(M) M(38, 39) PAIR_40(M)
#else
#define WORD_38(M)
#define PAIR_38(M)
#endif
#if WORDS > 39
#define WORD_39(M) M(39, 40) WORD_40(M)
#else
#define WORD_39(M)
#endif
#if WORDS > 40
#define WORD_40(M) M(40, 41) WORD_41(M)
#define PAIR_40(M) M(40, 41) PAIR_42(M)
#define FOUR_40(M) M(40, 41, 42, 43, 44) FOUR_44(M)
#else
#define WORD_40(M)
#define PAIR_40(M)
#define FOUR_40(M)
#endif
#if WORDS > 41
#define WORD_41(M) M(41, 42) WORD_42(M)
#else
#define WORD_41(M)
#endif
#if WORDS > 42
#define WORD_42(M) M(42, 43) WORD_43(M)
#define PAIR_42(M) M(42, 43) PAIR_44(M)
#else
#define WORD_42(M)
#define PAIR_42(M)
#endif
#if WORDS > 43
#define WORD_43(M) M(43, 44) WORD_44(M)
#else
#define WORD_43(M)
#endif
#if WORDS > 44
#define WORD_44(M) M(44, 45) WORD_45(M)
#define PAIR_44(M) M(44, 45) PAIR_46(M)
#define FOUR_44(M) M(44, 45, 46, 47, 48) FOUR_48(M)
#else
#define WORD_44(M)
#define PAIR_44(M)
#define FOUR_44(M)
#endif
#if WORDS > 45
#define WORD_45(M) M(45, 46) WORD_46(M)
#else
#define WORD_45(M)
#endif
#if WORDS > 46
#define WORD_46(M) M(46, 47) WORD_47(M)
#define PAIR_46(M) M(46, 47) PAIR_48(M)
#else
#define WORD_46(M)
#define PAIR_46(M)
#endif
#if WORDS > 47
#define WORD_47(M) M(47, 48) WORD_48(M)
#else
#define WORD_47(M)
#endif
#if WORDS > 48
#define WORD_48(M) M(48, 49) WORD_49(M)
#define PAIR_48(M) M(48, 49) PAIR_50(M)
#define FOUR_48(M) M(48, 49, 50, 51, 52) FOUR_52(M)
#else
#define WORD_48(M)
#define PAIR_48(M)
#define FOUR_48(M)
#endif
#if WORDS > 49
#define WORD_49(M) M(49, 50) WORD_50(M)
#else
#define WORD_49(M)
#endif
#if WORDS > 50
#define WORD_50(M) M(50, 51) WORD_51(M)
#define PAIR_50(M) M(50, 51) PAIR_52(M)
#else
#define WORD_50(M)
#define PAIR_50(M)
#endif
#if WORDS > 51
#define WORD_51(M) M(51, 52) WORD_52(M)
#else
#define WORD_51(M)
#endif
#if WORDS > 52
#define WORD_52(M) M(52, 53) WORD_53(M)
#define PAIR_52(M) M(52, 53) PAIR_54(M)
#define FOUR_52(M) M(52, 53, 54, 55, 56) FOUR_56(M)
#else
#define WORD_52(M)
#define PAIR_52(M)
#define FOUR_52(M)
#endif
#if WORDS > 53
#define WORD_53(M) M(53, 54) WORD_54(M)
#else
#define WORD_53(M)
#endif
#if WORDS > 54
#define WORD_54(M) M(54, 55) WORD_55(M)
#define PAIR_54(M) M(54, 55) PAIR_56(M)
#else
#define WORD_54(M)
#define PAIR_54(M)
#endif
#if WORDS > 55
#define WORD_55(M) M(55, 56) WORD_56(M)
#else
#define WORD_55(M)
#endif
#if WORDS > 56
#define WORD_56(M) M(56, 57) WORD_57(M)
#define PAIR_56(M) M(56, 57) PAIR_58(M)
#define FOUR_56(M) M(56, 57, 58, 59, 60) FOUR_60(M)
#else
#define WORD_56(M)
#define PAIR_56(M)
#define FOUR_56(M)
#endif
#if WORDS > 57
#define WORD_57(M) M(57, 58) WORD_58(M)
#else
#define WORD_57(M)
#endif
#if WORDS > 58
#define WORD_58(M) M(58, 59) WORD_59(M)
#define PAIR_58(M) M(58, 59) PAIR_60(M)
#else
#define WORD_58(M)
#define PAIR_58(M)
#endif
#if WORDS > 59
#define WORD_59(M) M(59, 60) WORD_60(M)
#else
#define WORD_59(M)
#endif
#if WORDS > 60
#define WORD_60(M) M(60, 61) WORD_61(M)
#define PAIR_60(M) M(60, 61) PAIR_62(M)
#define FOUR_60(M) M(60, 61, 62, 63, 64) FOUR_64(M)
#else
#define WORD_60(M)
#define PAIR_60(M)
#define FOUR_60(M)
#endif
#if WORDS > 61
#define WORD_61(M) M(61, 62) WORD_62(M)
#else
#define WORD_61(M)
#endif
#if WORDS > 62
#define WORD_62(M) M(62, 63) WORD_63(M)
#define PAIR_62(M) M(62, 63) PAIR_64(M)
#else
#define WORD_62(M)
#define PAIR_62(M)
#endif
#if WORDS > 63
#define WORD_63(M) M(63, 64) WORD_64(M)
#else
#define WORD_63(M)
#endif
#define WORD_64(M)
#define PAIR_64(M)
#define FOUR_64(M)

#define EACH_WORD(M) WORD_0(M)
#define EACH_PAIR(M) PAIR_0(M)
#define EACH_FOUR(M) FOUR_0(M)

/* M(0) ... M(31). */
#define EACH_WORKER(M)                                                                                                 \
    M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)                                                                            \
    M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)                                                                      \
    M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23)                                                                    \
    M(24) M(25) M(26) M(27) M(28) M(29) M(30) M(31)

#endif
