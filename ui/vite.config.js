// One page, all files beside it: the window loads nothing from anywhere else.
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  build: { target: "es2021", modulePreload: false, assetsInlineLimit: 0, chunkSizeWarningLimit: 150 },
});
