// Light or dark: what the system prefers, until a reader chooses; style.css does the rest.
(function () {
  const root = document.documentElement;
  const preferred = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const kept = () => { try { return localStorage.getItem("evokernel-theme"); } catch { return null; } };
  const apply = () => root.setAttribute("data-theme", kept() || preferred());
  apply();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  document.addEventListener("click", (event) => {
    if (!event.target.closest || !event.target.closest("#theme")) return;
    const next = root.getAttribute("data-theme") === "dark" ? "light" : "dark";
    try { localStorage.setItem("evokernel-theme", next); } catch { /* private mode: for this page only */ }
    root.setAttribute("data-theme", next);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.id === "sql" && event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      event.target.blur(); // the text is sent when the field is left
      setTimeout(() => { document.getElementById("ask").click(); event.target.focus(); }, 50);
    }
  });
})();
