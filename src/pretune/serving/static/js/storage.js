// Values that outlive a page load; where the browser blocks storage, they last until the page is closed.

function guarded(area) {
  const fallback = new Map();
  return {
    get(key) {
      try {
        return area().getItem(key) ?? fallback.get(key) ?? null;
      } catch {
        return fallback.get(key) ?? null;
      }
    },
    set(key, value) {
      fallback.set(key, value);
      try {
        area().setItem(key, value);
      } catch {
        // Kept in memory only.
      }
    },
    remove(key) {
      fallback.delete(key);
      try {
        area().removeItem(key);
      } catch {
        // There was nothing but the value in memory.
      }
    },
  };
}

export const settings = guarded(() => localStorage); // language and theme
export const session = guarded(() => sessionStorage); // the access token
