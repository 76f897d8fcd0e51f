/* made_up_library.c: what test_library.c loads; CMakeLists.txt makes several of it. */
int made_up_version(void);
int made_up_version(void)
{
    return MADE_UP_VERSION;
}

#ifndef MADE_UP_LACKS
int made_up_twice(int x);
int made_up_twice(int x)
{
    return 2 * x;
}
#endif
