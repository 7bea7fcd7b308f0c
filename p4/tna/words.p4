/* What there is once for each word of a packet, or for each worker.
 *
 * EACH_WORD(M): M(0, 1) M(1, 2) ... M(WORDS - 1, WORDS). REST_n(M): the same from word n on, and may stand inside of M. */
#ifndef FANIN_TNA_WORDS_P4
#define FANIN_TNA_WORDS_P4

#if WORDS > 0
#define FROM_0(M) M(0, 1) FROM_1(M)
#define REST_0(M) M(0, 1) REST_1(M)
#else
#define FROM_0(M)
#define REST_0(M)
#endif
#if WORDS > 1
#define FROM_1(M) M(1, 2) FROM_2(M)
#define REST_1(M) M(1, 2) REST_2(M)
#else
#define FROM_1(M)
#define REST_1(M)
#endif
#if WORDS > 2
#define FROM_2(M) M(2, 3) FROM_3(M)
#define REST_2(M) M(2, 3) REST_3(M)
#else
#define FROM_2(M)
#define REST_2(M)
#endif
#if WORDS > 3
#define FROM_3(M) M(3, 4) FROM_4(M)
#define REST_3(M) M(3, 4) REST_4(M)
#else
#define FROM_3(M)
#define REST_3(M)
#endif
#if WORDS > 4
#define FROM_4(M) M(4, 5) FROM_5(M)
#define REST_4(M) M(4, 5) REST_5(M)
#else
#define FROM_4(M)
#define REST_4(M)
#endif
#if WORDS > 5
#define FROM_5(M) M(5, 6) FROM_6(M)
#define REST_5(M) M(5, 6) REST_6(M)
#else
#define FROM_5(M)
#define REST_5(M)
#endif
#if WORDS > 6
#define FROM_6(M) M(6, 7) FROM_7(M)
#define REST_6(M) M(6, 7) REST_7(M)
#else
#define FROM_6(M)
#define REST_6(M)
#endif
#if WORDS > 7
#define FROM_7(M) M(7, 8) FROM_8(M)
#define REST_7(M) M(7, 8) REST_8(M)
#else
#define FROM_7(M)
#define REST_7(M)
#endif
#if WORDS > 8
#define FROM_8(M) M(8, 9) FROM_9(M)
#define REST_8(M) M(8, 9) REST_9(M)
#else
#define FROM_8(M)
#define REST_8(M)
#endif
#if WORDS > 9
#define FROM_9(M) M(9, 10) FROM_10(M)
#define REST_9(M) M(9, 10) REST_10(M)
#else
#define FROM_9(M)
#define REST_9(M)
#endif
#if WORDS > 10
#define FROM_10(M) M(10, 11) FROM_11(M)
#define REST_10(M) M(10, 11) REST_11(M)
#else
#define FROM_10(M)
#define REST_10(M)
#endif
#if WORDS > 11
#define FROM_11(M) M(11, 12) FROM_12(M)
#define REST_11(M) M(11, 12) REST_12(M)
#else
#define FROM_11(M)
#define REST_11(M)
#endif
#if WORDS > 12
#define FROM_12(M) M(12, 13) FROM_13(M)
#define REST_12(M) M(12, 13) REST_13(M)
#else
#define FROM_12(M)
#define REST_12(M)
#endif
#if WORDS > 13
#define FROM_13(M) M(13, 14) FROM_14(M)
#define REST_13(M) M(13, 14) REST_14(M)
#else
#define FROM_13(M)
#define REST_13(M)
#endif
#if WORDS > 14
#define FROM_14(M) M(14, 15) FROM_15(M)
#define REST_14(M) M(14, 15) REST_15(M)
#else
#define FROM_14(M)
#define REST_14(M)
#endif
#if WORDS > 15
#define FROM_15(M) M(15, 16) FROM_16(M)
#define REST_15(M) M(15, 16) REST_16(M)
#else
#define FROM_15(M)
#define REST_15(M)
#endif
#if WORDS > 16
#define FROM_16(M) M(16, 17) FROM_17(M)
#define REST_16(M) M(16, 17) REST_17(M)
#else
#define FROM_16(M)
#define REST_16(M)
#endif
#if WORDS > 17
#define FROM_17(M) M(17, 18) FROM_18(M)
#define REST_17(M) M(17, 18) REST_18(M)
#else
#define FROM_17(M)
#define REST_17(M)
#endif
#if WORDS > 18
#define FROM_18(M) M(18, 19) FROM_19(M)
#define REST_18(M) M(18, 19) REST_19(M)
#else
#define FROM_18(M)
#define REST_18(M)
#endif
#if WORDS > 19
#define FROM_19(M) M(19, 20) FROM_20(M)
#define REST_19(M) M(19, 20) REST_20(M)
#else
#define FROM_19(M)
#define REST_19(M)
#endif
#if WORDS > 20
#define FROM_20(M) M(20, 21) FROM_21(M)
#define REST_20(M) M(20, 21) REST_21(M)
#else
#define FROM_20(M)
#define REST_20(M)
#endif
#if WORDS > 21
#define FROM_21(M) M(21, 22) FROM_22(M)
#define REST_21(M) M(21, 22) REST_22(M)
#else
#define FROM_21(M)
#define REST_21(M)
#endif
#if WORDS > 22
#define FROM_22(M) M(22, 23) FROM_23(M)
#define REST_22(M) M(22, 23) REST_23(M)
#else
#define FROM_22(M)
#define REST_22(M)
#endif
#if WORDS > 23
#define FROM_23(M) M(23, 24) FROM_24(M)
#define REST_23(M) M(23, 24) REST_24(M)
#else
#define FROM_23(M)
#define REST_23(M)
#endif
#if WORDS > 24
#define FROM_24(M) M(24, 25) FROM_25(M)
#define REST_24(M) M(24, 25) REST_25(M)
#else
#define FROM_24(M)
#define REST_24(M)
#endif
#if WORDS > 25
#define FROM_25(M) M(25, 26) FROM_26(M)
#define REST_25(M) M(25, 26) REST_26(M)
#else
#define FROM_25(M)
#define REST_25(M)
#endif
#if WORDS > 26
#define FROM_26(M) M(26, 27) FROM_27(M)
#define REST_26(M) M(26, 27) REST_27(M)
#else
#define FROM_26(M)
#define REST_26(M)
#endif
#if WORDS > 27
#define FROM_27(M) M(27, 28) FROM_28(M)
#define REST_27(M) M(27, 28) REST_28(M)
#else
#define FROM_27(M)
#define REST_27(M)
#endif
#if WORDS > 28
#define FROM_28(M) M(28, 29) FROM_29(M)
#define REST_28(M) M(28, 29) REST_29(M)
#else
#define FROM_28(M)
#define REST_28(M)
#endif
#if WORDS > 29
#define FROM_29(M) M(29, 30) FROM_30(M)
#define REST_29(M) M(29, 30) REST_30(M)
#else
#define FROM_29(M)
#define REST_29(M)
#endif
#if WORDS > 30
#define FROM_30(M) M(30, 31) FROM_31(M)
#define REST_30(M) M(30, 31) REST_31(M)
#else
#define FROM_30(M)
#define REST_30(M)
#endif
#if WORDS > 31
#define FROM_31(M) M(31, 32) FROM_32(M)
#define REST_31(M) M(31, 32) REST_32(M)
#else
#define FROM_31(M)
#define REST_31(M)
#endif
#if WORDS > 32
#define FROM_32(M) M(32, 33) FROM_33(M)
#define REST_32(M) M(32, 33) REST_33(M)
#else
#define FROM_32(M)
#define REST_32(M)
#endif
#if WORDS > 33
#define FROM_33(M) M(33, 34) FROM_34(M)
#define REST_33(M) M(33, 34) REST_34(M)
#else
#define FROM_33(M)
#define REST_33(M)
#endif
#if WORDS > 34
#define FROM_34(M) M(34, 35) FROM_35(M)
#define REST_34(M) M(34, 35) REST_35(M)
#else
#define FROM_34(M)
#define REST_34(M)
#endif
#if WORDS > 35
#define FROM_35(M) M(35, 36) FROM_36(M)
#define REST_35(M) M(35, 36) REST_36(M)
#else
#define FROM_35(M)
#define REST_35(M)
#endif
#if WORDS > 36
#define FROM_36(M) M(36, 37) FROM_37(M)
#define REST_36(M) M(36, 37) REST_37(M)
#else
#define FROM_36(M)
#define REST_36(M)
#endif
#if WORDS > 37
#define FROM_37(M) M(37, 38) FROM_38(M)
#define REST_37(M) M(37, 38) REST_38(M)
#else
#define FROM_37(M)
#define REST_37(M)
#endif
#if WORDS > 38
#define FROM_38(M) M(38, 39) FROM_39(M)
#define REST_38(M) M(38, 39) REST_39(M)
#else
#define FROM_38(M)
#define REST_38(M)
#endif
#if WORDS > 39
#define FROM_39(M) M(39, 40) FROM_40(M)
#define REST_39(M) M(39, 40) REST_40(M)
#else
#define FROM_39(M)
#define REST_39(M)
#endif
#if WORDS > 40
#define FROM_40(M) M(40, 41) FROM_41(M)
#define REST_40(M) M(40, 41) REST_41(M)
#else
#define FROM_40(M)
#define REST_40(M)
#endif
#if WORDS > 41
#define FROM_41(M) M(41, 42) FROM_42(M)
#define REST_41(M) M(41, 42) REST_42(M)
#else
#define FROM_41(M)
#define REST_41(M)
#endif
#if WORDS > 42
#define FROM_42(M) M(42, 43) FROM_43(M)
#define REST_42(M) M(42, 43) REST_43(M)
#else
#define FROM_42(M)
#define REST_42(M)
#endif
#if WORDS > 43
#define FROM_43(M) M(43, 44) FROM_44(M)
#define REST_43(M) M(43, 44) REST_44(M)
#else
#define FROM_43(M)
#define REST_43(M)
#endif
#if WORDS > 44
#define FROM_44(M) M(44, 45) FROM_45(M)
#define REST_44(M) M(44, 45) REST_45(M)
#else
#define FROM_44(M)
#define REST_44(M)
#endif
#if WORDS > 45
#define FROM_45(M) M(45, 46) FROM_46(M)
#define REST_45(M) M(45, 46) REST_46(M)
#else
#define FROM_45(M)
#define REST_45(M)
#endif
#if WORDS > 46
#define FROM_46(M) M(46, 47) FROM_47(M)
#define REST_46(M) M(46, 47) REST_47(M)
#else
#define FROM_46(M)
#define REST_46(M)
#endif
#if WORDS > 47
#define FROM_47(M) M(47, 48) FROM_48(M)
#define REST_47(M) M(47, 48) REST_48(M)
#else
#define FROM_47(M)
#define REST_47(M)
#endif
#if WORDS > 48
#define FROM_48(M) M(48, 49) FROM_49(M)
#define REST_48(M) M(48, 49) REST_49(M)
#else
#define FROM_48(M)
#define REST_48(M)
#endif
#if WORDS > 49
#define FROM_49(M) M(49, 50) FROM_50(M)
#define REST_49(M) M(49, 50) REST_50(M)
#else
#define FROM_49(M)
#define REST_49(M)
#endif
#if WORDS > 50
#define FROM_50(M) M(50, 51) FROM_51(M)
#define REST_50(M) M(50, 51) REST_51(M)
#else
#define FROM_50(M)
#define REST_50(M)
#endif
#if WORDS > 51
#define FROM_51(M) M(51, 52) FROM_52(M)
#define REST_51(M) M(51, 52) REST_52(M)
#else
#define FROM_51(M)
#define REST_51(M)
#endif
#if WORDS > 52
#define FROM_52(M) M(52, 53) FROM_53(M)
#define REST_52(M) M(52, 53) REST_53(M)
#else
#define FROM_52(M)
#define REST_52(M)
#endif
#if WORDS > 53
#define FROM_53(M) M(53, 54) FROM_54(M)
#define REST_53(M) M(53, 54) REST_54(M)
#else
#define FROM_53(M)
#define REST_53(M)
#endif
#if WORDS > 54
#define FROM_54(M) M(54, 55) FROM_55(M)
#define REST_54(M) M(54, 55) REST_55(M)
#else
#define FROM_54(M)
#define REST_54(M)
#endif
#if WORDS > 55
#define FROM_55(M) M(55, 56) FROM_56(M)
#define REST_55(M) M(55, 56) REST_56(M)
#else
#define FROM_55(M)
#define REST_55(M)
#endif
#if WORDS > 56
#define FROM_56(M) M(56, 57) FROM_57(M)
#define REST_56(M) M(56, 57) REST_57(M)
#else
#define FROM_56(M)
#define REST_56(M)
#endif
#if WORDS > 57
#define FROM_57(M) M(57, 58) FROM_58(M)
#define REST_57(M) M(57, 58) REST_58(M)
#else
#define FROM_57(M)
#define REST_57(M)
#endif
#if WORDS > 58
#define FROM_58(M) M(58, 59) FROM_59(M)
#define REST_58(M) M(58, 59) REST_59(M)
#else
#define FROM_58(M)
#define REST_58(M)
#endif
#if WORDS > 59
#define FROM_59(M) M(59, 60) FROM_60(M)
#define REST_59(M) M(59, 60) REST_60(M)
#else
#define FROM_59(M)
#define REST_59(M)
#endif
#if WORDS > 60
#define FROM_60(M) M(60, 61) FROM_61(M)
#define REST_60(M) M(60, 61) REST_61(M)
#else
#define FROM_60(M)
#define REST_60(M)
#endif
#if WORDS > 61
#define FROM_61(M) M(61, 62) FROM_62(M)
#define REST_61(M) M(61, 62) REST_62(M)
#else
#define FROM_61(M)
#define REST_61(M)
#endif
#if WORDS > 62
#define FROM_62(M) M(62, 63) FROM_63(M)
#define REST_62(M) M(62, 63) REST_63(M)
#else
#define FROM_62(M)
#define REST_62(M)
#endif
#if WORDS > 63
#define FROM_63(M) M(63, 64) FROM_64(M)
#define REST_63(M) M(63, 64) REST_64(M)
#else
#define FROM_63(M)
#define REST_63(M)
#endif
#define FROM_64(M)
#define REST_64(M)

#define EACH_WORD(M) FROM_0(M)

/* M(0) ... M(31). */
#define EACH_WORKER(M)                                                                                                 \
    M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)                                                                            \
    M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)                                                                      \
    M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23)                                                                    \
    M(24) M(25) M(26) M(27) M(28) M(29) M(30) M(31)

#endif
