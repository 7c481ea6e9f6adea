// Puts what a reader chose from a list into the address; the server draws the page anew from there.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.evokernel = {
  chosen: function (values, ids, search) {
    const query = new URLSearchParams(search || "");
    let changed = false;
    values.forEach((value, i) => {
      const now = Array.isArray(value) ? value.join(",") : value;
      if (value === null || value === undefined || String(now) === String(ids[i].now)) return;
      query.set(ids[i].key, now);
      if (ids[i].key === "run") ["class", "x", "y"].forEach((key) => query.delete(key));
      changed = true;
    });
    return changed ? "?" + query.toString() : window.dash_clientside.no_update;
  },
};
