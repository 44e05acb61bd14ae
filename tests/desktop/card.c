// A graphics card that can be taken away: Mesa's Vulkan driver on the CPU behind a switch, for the tests of the app.
// The file CARD says what it does: "there"; "gone", when no card shows and work that is handed in is lost with it; or
// "broken", when the driver crashes as soon as it is looked at. DRIVER names Mesa's library.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*Find)(void *of, const char *name);
typedef int (*Enumerate)(void *instance, uint32_t *count, void *cards);
typedef int (*Submit)(void *queue, uint32_t count, const void *work, uint64_t fence);

enum { VK_SUCCESS = 0, VK_ERROR_DEVICE_LOST = -4 };

static Find find_of_device;
static Enumerate enumerate;
static Submit submit;

static int is(const char *state) {
    char text[16] = "there";
    FILE *file = fopen(getenv("CARD"), "r");
    if (file != NULL) {
        if (fscanf(file, "%15s", text) != 1) text[0] = 0;
        fclose(file);
    }
    return strcmp(text, state) == 0;
}

static void *of_mesa(const char *name) {
    static void *mesa;
    if (mesa == NULL) mesa = dlopen(getenv("DRIVER"), RTLD_NOW | RTLD_LOCAL);
    if (mesa == NULL) abort();
    return dlsym(mesa, name);
}

static int enumerate_cards(void *instance, uint32_t *count, void *cards) {
    if (!is("gone")) return enumerate(instance, count, cards);
    *count = 0;
    return VK_SUCCESS;
}

static int submit_work(void *queue, uint32_t count, const void *work, uint64_t fence) {
    return is("gone") ? VK_ERROR_DEVICE_LOST : submit(queue, count, work, fence);
}

static Function find_in_device(void *device, const char *name) {
    Function found = find_of_device(device, name);
    if (found == NULL || strcmp(name, "vkQueueSubmit") != 0) return found;
    submit = (Submit)found;
    return (Function)submit_work;
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    Function found = ((Find)of_mesa("vk_icdGetInstanceProcAddr"))(instance, name);
    if (found == NULL) return NULL;
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        find_of_device = (Find)found;
        return (Function)find_in_device;
    }
    if (strcmp(name, "vkEnumeratePhysicalDevices") == 0) {
        enumerate = (Enumerate)found;
        return (Function)enumerate_cards;
    }
    return found;
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    return ((Find)of_mesa("vk_icdGetPhysicalDeviceProcAddr"))(instance, name);
}

int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    if (is("broken")) abort();
    return ((int (*)(uint32_t *))of_mesa("vk_icdNegotiateLoaderICDInterfaceVersion"))(version);
}
